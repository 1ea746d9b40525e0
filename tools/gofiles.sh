#!/bin/bash
# Lists the Go files of the project that people write: committed or new, not generated, not deleted.
set -euo pipefail
git ls-files --cached --others --exclude-standard '*.go' | sort -u | while read -r file; do
	if [ -f "$file" ] && ! grep -qm1 '^// Code generated .* DO NOT EDIT\.$' "$file"; then
		echo "$file"
	fi
done
