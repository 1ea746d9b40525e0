#!/bin/bash
# Runs every generator and fails where a committed file changes. The new files are left in place to be committed.
set -euo pipefail

# Generated Go says so in its first lines; the BPF objects stand beside it.
generated() {
	{
		git grep -lE '^// Code generated .* DO NOT EDIT\.$' -- '*.go' || true
		git ls-files '*_bpfel.o' '*_bpfeb.o' '*_bpf.o'
	} | sort -u
}

files=$(generated)
if [ -z "$files" ]; then
	echo "check-generated: the repository holds no generated file"
	exit 0
fi
before=$(sha256sum $files)
go generate ./...
after=$(sha256sum $files)

if [ "$before" != "$after" ]; then
	echo "check-generated: these files are not what their sources give; commit the new ones:" >&2
	diff <(echo "$before") <(echo "$after") | awk '/^>/ {print "  " $3}' >&2
	clang --version | head -1 >&2
	exit 1
fi
new=$(git ls-files --others --exclude-standard | xargs -r grep -lsE '^// Code generated .* DO NOT EDIT\.$' || true)
if [ -n "$new" ]; then
	echo "check-generated: these generated files are not committed:" >&2
	echo "$new" | sed 's/^/  /' >&2
	exit 1
fi
echo "check-generated: $(echo "$files" | wc -l) files are fresh"
