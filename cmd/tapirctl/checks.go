package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/tapir-cni/tapir/internal/sysctl"
	"github.com/tapir-cni/tapir/plugin"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/tap"
	"github.com/tapir-cni/tapir/xdp"
	"golang.org/x/sys/unix"
)

func checkKernel(context.Context, *options) finding {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return finding{"kernel", bad, err.Error(), ""}
	}
	return finding{"kernel", good, unix.ByteSliceToString(u.Release[:]) + " on " + unix.ByteSliceToString(u.Machine[:]), ""}
}

// needed are the capabilities of an ADD, by bit (include/uapi/linux/capability.h).
var needed = []struct {
	bit  int
	name string
}{{unix.CAP_NET_ADMIN, "CAP_NET_ADMIN"}, {unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN"}, {unix.CAP_BPF, "CAP_BPF"}, {unix.CAP_PERFMON, "CAP_PERFMON"}}

func checkPrivileges(context.Context, *options) finding {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return finding{"privileges", bad, err.Error(), ""}
	}
	var missing []string
	for _, c := range needed {
		if data[c.bit/32].Effective&(1<<(c.bit%32)) == 0 {
			missing = append(missing, c.name)
		}
	}
	if len(missing) > 0 {
		return finding{"privileges", bad, strings.Join(missing, ", ") + " missing", "run tapirctl as root; the runtime calls the plugin as root"}
	}
	return finding{"privileges", good, "all that an ADD needs", ""}
}

func checkTun(context.Context, *options) finding {
	if err := tap.Usable(); err != nil {
		return finding{"tun device", bad, err.Error(), "load the kernel module tun, and see that " + tap.Device + " is there (a container needs the device 10:200)"}
	}
	return finding{"tun device", good, tap.Device + " has multi-queue and vnet headers", ""}
}

func checkPrograms(_ context.Context, o *options) finding {
	if err := xdp.Usable(o.bpffs); err != nil {
		return finding{"BPF programs", bad, err.Error(), "mount bpffs (mount -t bpf bpf /sys/fs/bpf) and run as root; the kernel needs CONFIG_BPF_SYSCALL and CONFIG_NET_CLS_ACT"}
	}
	return finding{"BPF programs", good, "can be loaded and pinned under " + o.bpffs, ""}
}

func checkHook(context.Context, *options) finding {
	err := xdp.HaveTCX()
	var unsupported *xdp.UnsupportedError
	switch {
	case err == nil:
		return finding{"redirect", good, "auto is clsact on tapir's own devices; tcx is there as well", ""}
	case errors.As(err, &unsupported):
		return finding{"redirect", good, "auto is clsact; " + err.Error(), ""}
	}
	return finding{"redirect", limited, "auto is clsact; whether tcx is there: " + err.Error(), ""}
}

func checkNftables(context.Context, *options) finding {
	if err := plugin.MasqueradeUsable(); err != nil {
		return finding{"masquerade", limited, err.Error(), `"ipMasq": true will fail; load nf_tables with nft_chain_nat and nft_masq`}
	}
	return finding{"masquerade", good, "nftables answers", ""}
}

func checkIPv4(context.Context, *options) finding {
	switch v, err := sysctl.Get("net/ipv4/ip_forward"); {
	case err != nil:
		return finding{"IPv4 forwarding", bad, err.Error(), ""}
	case v == "0" && !sysctl.Writable("net/ipv4/ip_forward"):
		return finding{"IPv4 forwarding", bad, "is off, and /proc/sys is read-only here", "set net.ipv4.ip_forward=1 on the node"}
	case v == "0":
		return finding{"IPv4 forwarding", limited, "is off; the first ADD with an IPv4 range turns it on", "if /proc/sys is read-only for the plugin, set net.ipv4.ip_forward=1"}
	}
	return finding{"IPv4 forwarding", good, "is on", ""}
}

func checkIPv6(context.Context, *options) finding {
	if v, err := sysctl.Get("net/ipv6/conf/all/disable_ipv6"); err != nil || v == "1" {
		return finding{"IPv6", limited, "is off on this node", "leave IPv6 ranges out, or set net.ipv6.conf.all.disable_ipv6=0"}
	}
	if v, err := sysctl.Get("net/ipv6/conf/all/forwarding"); err == nil && v == "0" {
		if !sysctl.Writable("net/ipv6/conf/all/forwarding") {
			return finding{"IPv6", bad, "forwarding is off, and /proc/sys is read-only here", "set net.ipv6.conf.all.forwarding=1 on the node, and accept_ra=2 where it takes its routes from router advertisements"}
		}
		return finding{"IPv6", limited, "forwarding is off; the first ADD with an IPv6 range turns it on and keeps the node's RA routes (accept_ra=2)", ""}
	}
	return finding{"IPv6", good, "is on and forwards", ""}
}

func checkMTU(context.Context, *options) finding {
	mtu, err := plugin.DefaultRouteMTU()
	if err != nil {
		return finding{"MTU", bad, err.Error(), `set "mtu" in the configuration`}
	}
	return finding{"MTU", good, fmt.Sprintf("%d, by the default route's device (1500 without one)", mtu), ""}
}

func checkState(ctx context.Context, o *options) finding {
	for _, dir := range o.stateDirs {
		if err := state.New(state.Config{Dir: dir}).Check(ctx); err != nil {
			return finding{"state", bad, err.Error(), "a stopped process may hold the lock; a damaged file is rebuilt by the next ADD"}
		}
		var fs unix.Statfs_t
		if err := unix.Statfs(dir, &fs); err == nil && fs.Type != unix.TMPFS_MAGIC {
			return finding{"state", limited, dir + " is not on a tmpfs", "after a reboot it is set aside by its boot id; a tmpfs costs less"}
		}
	}
	return finding{"state", good, strings.Join(o.stateDirs, ", "), ""}
}

func checkVhost(context.Context, *options) finding {
	if _, err := os.Stat("/dev/vhost-net"); err != nil {
		return finding{"vhost-net", limited, "no /dev/vhost-net", "QEMU and Kata run without it, slower; load the kernel module vhost_net"}
	}
	return finding{"vhost-net", good, "/dev/vhost-net", ""}
}

func checkKVM(context.Context, *options) finding {
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return finding{"KVM", limited, err.Error(), "Firecracker and Cloud Hypervisor need it; QEMU can emulate"}
	}
	_ = f.Close()
	return finding{"KVM", good, "/dev/kvm opens; whether a guest boots is told by tapirctl quickstart", ""}
}

// attachmentFindings compares every attachment with the kernel, or the one that is named.
func attachmentFindings(ctx context.Context, o *options, only string) ([]finding, error) {
	all, err := attachments(ctx, o)
	if err != nil {
		return []finding{{"attachments", bad, err.Error(), ""}}, nil
	}
	if only != "" {
		one, err := find(ctx, o, only)
		if err != nil {
			return nil, err
		}
		all = []recorded{one}
	}
	list := make([]finding, 0, len(all))
	for _, a := range all {
		list = append(list, inspectOne(o, a))
	}
	return list, nil
}

func inspectOne(o *options, a recorded) finding {
	name := "attachment " + a.Key.String()
	if a.Status != state.Ready {
		if state.Held(a.dir, a.Key) {
			return finding{name, good, "is being added", ""}
		}
		return finding{name, bad, "its ADD did not finish", `DEL it, or run "tapirctl cleanup"`}
	}
	if a.Netns == "" {
		advice := "it goes with its sandbox or by DEL"
		if a.OnHost() {
			advice = "it goes by DEL or GC, or where tapirctl gc finds that the runtime has no such sandbox"
		}
		return finding{name, limited, "was rebuilt from the kernel; its sandbox is not known", advice}
	}
	wrong, err := plugin.Inspect(a.Attachment, o.bpffs)
	switch {
	case err != nil:
		return finding{name, bad, err.Error(), `if the sandbox is gone, DEL it or run "tapirctl cleanup"`}
	case len(wrong) > 0:
		return finding{name, bad, strings.Join(wrong, "; "), "somebody changed it after ADD: delete the pod, so that it is made anew"}
	}
	return finding{name, good, "the kernel has all that was asked for", ""}
}
