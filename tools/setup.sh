#!/bin/bash
# Installs the Debian packages that the named groups need, only those that are missing:
#   net       nft, ip and friends, for tests and for looking at what they did
#   vm        what boots a microVM: QEMU, and what its initramfs is made of
#   debianvm  what makes the disks of a whole Debian in a virtual machine; with vm
#   dpdk      testpmd, where the machine has vhost-net of its own
#   page      the browser that tests tapird's status page
#   cluster   what the nodes of a test cluster run beside Kubernetes; with net
#   generate  the compiler of the BPF programs
# The package lists are fetched only when apt cannot find a package or its file.
set -euo pipefail

packages=()
for group in "$@"; do
	case $group in
	net) packages+=(nftables iptables iproute2 ethtool tcpdump) ;;
	vm) packages+=(qemu-system-x86 busybox-static cpio xz-utils) ;;
	debianvm) packages+=(debootstrap e2fsprogs kmod) ;;
	dpdk) packages+=(dpdk-dev) ;;
	page) packages+=(chromium) ;;
	cluster) packages+=(runc conntrack ipset) ;;
	generate) packages+=(clang llvm libbpf-dev) ;;
	*)
		echo "tools/setup.sh: unknown group \"$group\"; want net, vm, debianvm, dpdk, page, cluster or generate" >&2
		exit 2
		;;
	esac
done

if ! command -v dpkg-query >/dev/null; then
	echo "tools/setup.sh: this is not Debian; make sure that these are installed: ${packages[*]}" >&2
	exit 0
fi

missing=()
for package in "${packages[@]}"; do
	status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
	[ "$status" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" != 0 ]; then
	echo "tools/setup.sh: these Debian packages are missing and only root can install them: ${missing[*]}" >&2
	exit 1
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=l

install_missing() {
	apt-get install -y --no-install-recommends -o DPkg::Lock::Timeout=120 "${missing[@]}" >"$log" 2>&1 </dev/null
}

echo "tools/setup.sh: installing ${missing[*]}"
if ! install_missing; then
	# No package lists yet, or lists that speak of files which the archive no longer has.
	echo "tools/setup.sh: fetching the package lists"
	if ! apt-get update -o DPkg::Lock::Timeout=120 >"$log" 2>&1 </dev/null || ! install_missing; then
		cat "$log" >&2
		echo "tools/setup.sh: could not install ${missing[*]}; apt-get's output stands above" >&2
		exit 1
	fi
fi
