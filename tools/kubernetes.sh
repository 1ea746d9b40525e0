#!/bin/bash
# Builds what a cluster of the tests runs on into the folder that is its argument: Kubernetes (test/k8s: one program, and a symlink for each of
# its names) and containerd (test/containerd). The results are kept by version in the user's cache, so that another checkout builds nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$1

cache=${XDG_CACHE_HOME:-$HOME/.cache}/tapir/k8s
version() { sed -n "s#^[[:space:]]*$2 \(v[^ ]*\).*#\1#p" "$1/go.mod" | head -1; }
key=$(cat tools/kubernetes.sh test/k8s/go.mod test/k8s/go.sum test/k8s/*.go test/containerd/go.mod test/containerd/go.sum <(go version) | sha256sum | cut -c1-16)
names=(etcd kube-apiserver kube-controller-manager kube-proxy kube-scheduler kubectl kubelet)

if [ ! -d "$cache/$key" ]; then
	mkdir -p "$cache"
	work=$(mktemp -d "$cache/.new-XXXXXX")
	trap 'rm -rf "$work"' EXIT
	export CGO_ENABLED=0
	kubernetes=$(version test/k8s k8s.io/kubernetes)
	echo "building Kubernetes $kubernetes; the first time takes up to ten minutes"
	minor=${kubernetes#v1.} minor=${minor%%.*}
	go -C test/k8s build -trimpath -o "$work/k8s" \
		-ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$kubernetes -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=$minor" .
	containerd=$(version test/containerd github.com/containerd/containerd/v2)
	echo "building containerd $containerd"
	go -C test/containerd build -trimpath -o "$work/" -tags "no_btrfs no_zfs no_aufs no_devmapper" \
		-ldflags "-s -w -X github.com/containerd/containerd/v2/version.Version=$containerd" tool
	for name in "${names[@]}"; do ln -s k8s "$work/$name"; done
	chmod 755 "$work"
	# Another checkout may have been quicker.
	mv -T "$work" "$cache/$key" 2>/dev/null || [ -d "$cache/$key" ]
	# What other versions left.
	find "$cache" -mindepth 1 -maxdepth 1 ! -name "$key" -mtime +30 -exec rm -rf {} +
fi
rm -rf "$out"
mkdir -p "$(dirname "$out")"
cp -a --reflink=auto "$cache/$key" "$out"
