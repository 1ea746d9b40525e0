#!/bin/bash
# Runs the tests of every module of the repository and writes one stream of test2json events, for gotestsum.
# The product's module comes first; a module under test/ that has no test of its own is passed over.
set -uo pipefail
cd "$(dirname "$0")/.."

status=0
for module in . $(find test -name go.mod -printf '%h\n' | sort); do
	tests=$(cd "$module" && go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./... 2>/dev/null)
	[ -n "$tests" ] || continue
	(cd "$module" && go test -json -count=1 -timeout 20m ./...) || status=1
done
exit $status
