#!/bin/bash
# Builds container images into the folder that is its argument, as OCI archives: tapir for the platforms of $PLATFORMS, or with "test" as the second
# argument what the cluster tests run beside it, for this machine, or with "previous" the tapir of the commit before this tree, and its deploy folder, or with "root"
# only the files of tapir's image for one platform, which deploy/image/Dockerfile makes one of.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$1 what=${2:-}
version=${VERSION:-$(git describe --tags --always --dirty 2>/dev/null || echo devel)}
name=${IMAGE:-localhost/tapir-cni/tapir:devel}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"
export CGO_ENABLED=0
if [ "$what" = previous ]; then
	commit=HEAD
	# Where a clone has no history, the same code of another version.
	if git diff --quiet HEAD -- && git rev-parse -q --verify HEAD~1 >/dev/null; then commit=HEAD~1; fi
	git archive "$commit" | tar -xC "$work"
	IMAGE=localhost/tapir-cni/tapir:previous VERSION=previous PLATFORMS=linux/$(go env GOARCH) "$work/tools/images.sh" "$work/out"
	sed -i 's/newTag: .*/newTag: previous/' "$work/deploy/base/kustomization.yaml"
	rm -rf "$out/previous-deploy"
	cp -r "$work/deploy" "$out/previous-deploy"
	mv "$work/out/tapir.tar" "$out/previous.tar"
	exit
fi
go -C tools/image build -o "$work/image" .

if [ "$what" != test ]; then
	args=()
	for platform in ${PLATFORMS:-linux/amd64 linux/arm64}; do
		arch=${platform#*/}
		mkdir -p "$work/$arch/opt/tapir/bin"
		# Without VCS stamps: they would tell a dirty tree from a clean one, which -X version does already, and differ between checkouts.
		GOOS=linux GOARCH=$arch go build -trimpath -buildvcs=false -ldflags "-s -w -X github.com/tapir-cni/tapir/internal/version.version=$version" \
			-o "$work/$arch/opt/tapir/bin/" ./cmd/tapir ./cmd/tapir-ipam ./cmd/tapirctl ./cmd/tapird
		args+=(-platform "$platform=$work/$arch")
	done
	if [ "$what" = root ]; then
		"$work/image" -name "$name" -boms "$work" "${args[@]}"
		install -m 644 "$work/tapir.$arch.cdx.json" "$work/$arch/opt/tapir/sbom.cdx.json"
		cp -r "$work/$arch" "$out/root"
		exit
	fi
	"$work/image" -o "$out/tapir.tar" -name "$name" -boms "$out" -entrypoint /opt/tapir/bin/tapird -sbom /opt/tapir "${args[@]}" \
		-label org.opencontainers.image.title=tapir -label "org.opencontainers.image.version=$version" -label org.opencontainers.image.licenses=Apache-2.0 \
		-label org.opencontainers.image.source=https://github.com/tapir-cni/tapir
else
	for program in pause probe vmpod; do
		mkdir -p "$work/$program"
		go -C test/cluster build -trimpath -buildvcs=false -ldflags "-s -w" -o "$work/$program/$program" "./images/$program"
		"$work/image" -o "$out/$program.tar" -name "localhost/$program:1" -entrypoint "/$program" -platform "linux/$(go env GOARCH)=$work/$program"
	done
	install -m 755 "$work/probe/probe" "$out/probe" # for guests
fi
