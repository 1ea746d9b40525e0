#!/bin/bash
# Runs every generator and fails where a committed file changes. The new files are left in place to be committed.
set -euo pipefail

readonly header='^// Code generated .* DO NOT EDIT\.$'

# Generated Go says so in its first lines; the BPF objects stand beside it.
committed() {
	{
		git grep -lE "$header" -- '*.go' || true
		git ls-files '*_bpfel.o' '*_bpfeb.o'
	} | sort -u
}

sums() { committed | xargs -r sha256sum; }

before=$(sums)
go generate ./...
after=$(sums)

if [ "$before" != "$after" ]; then
	echo "check-generated: these files are not what their sources give; commit the new ones:" >&2
	diff <(echo "$before") <(echo "$after") | awk '/^>/ {print "  " $3}' >&2
	clang --version | head -1 >&2
	exit 1
fi
new=$(git ls-files --others --exclude-standard '*.go' '*_bpfel.o' '*_bpfeb.o' | while read -r file; do
	case $file in
	*.o) echo "$file" ;;
	*) grep -lE "$header" "$file" || true ;;
	esac
done)
if [ -n "$new" ]; then
	echo "check-generated: these generated files are not committed:" >&2
	sed 's/^/  /' <<<"$new" >&2
	exit 1
fi
echo "check-generated: $(committed | wc -l) files are fresh"
