#!/bin/bash
# The init of a node: its namespaces are new (mount, UTS, IPC, PID, cgroup; the network's is its own). It mounts what a machine has, starts containerd,
# kubelet and kube-proxy and waits for the kubelet. $1 is the node's name, $2 its folder, $3 the folder of the programs, $4 that of the images.
set -u
name=$1 dir=$2 bin=$3 images=$4
hostname "$name"
mount -t proc proc /proc
# kubelet writes sysctls of the whole machine: it gets files in their place.
i=0
for kv in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
	i=$((i + 1))
	echo "${kv#*=}" >"$dir/tunables/$i"
	mount --bind "$dir/tunables/$i" "/proc/sys/${kv%=*}"
done
mount -t sysfs sysfs /sys
mount -t bpf bpf /sys/fs/bpf
mount -t tmpfs tmpfs /sys/fs/cgroup
while IFS=: read -r _ controllers _; do
	case $controllers in
	'') if [ -z "$CGROUP_V1" ]; then mount -t cgroup2 cgroup2 /sys/fs/cgroup; fi ;;
	name=*) mkdir "/sys/fs/cgroup/${controllers#name=}" && mount -t cgroup -o "none,$controllers" cgroup "/sys/fs/cgroup/${controllers#name=}" ;;
	*) mkdir "/sys/fs/cgroup/$controllers" && mount -t cgroup -o "$controllers" cgroup "/sys/fs/cgroup/$controllers" ;;
	esac
done <"/proc/self/cgroup"
mount -t tmpfs tmpfs /run
mkdir -p /run/containerd /run/netns
# Its own writable layer over the machine's folders: nothing that the node writes is seen outside, and it lasts over a power cut.
for top in etc opt var/lib; do
	mkdir -p "$dir/disk/$top" "$dir/disk-work/$top"
	mount -t overlay overlay -o "lowerdir=/$top,upperdir=$dir/disk/$top,workdir=$dir/disk-work/$top" "/$top"
done
mkdir -p /var/lib/kubelet /var/lib/containerd /etc/cni/net.d /var/lib/cni /opt/cni/bin
for m in var-lib-kubelet=/var/lib/kubelet var-lib-containerd=/var/lib/containerd etc-cni=/etc/cni/net.d var-lib-cni=/var/lib/cni opt-cni=/opt/cni/bin var-log=/var/log; do
	mount --bind "$dir/${m%%=*}" "${m#*=}"
done
mount --make-rshared /
export PATH=$bin:$PATH
touch "$dir/inside"
while :; do
	# It is started again where it ends, as systemd does.
	containerd -c "$dir/containerd.toml" >>"$dir/containerd.log" 2>&1
	sleep 0.2
done &
for _ in $(seq 300); do
	ctr -a /run/containerd/containerd.sock version >/dev/null 2>&1 && break
	sleep 0.1
done
for image in "$images"/*.tar; do
	ctr -a /run/containerd/containerd.sock -n k8s.io images import "$image" >>"$dir/images.log" 2>&1
done
kube-proxy --config="$dir/kube-proxy.yaml" --hostname-override="$name" --v=2 >>"$dir/kube-proxy.log" 2>&1 &
kubelet --config="$dir/kubelet.yaml" --kubeconfig="$dir/kubeconfig" --hostname-override="$name" --node-ip="$NODE_IP" --v=2 >>"$dir/kubelet.log" 2>&1
echo "kubelet ended with $?" >>"$dir/kubelet.log"
wait
