package quickstart

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/tapir-cni/tapir/internal/microvm/stream"
)

const netnsDir = "/run/netns"

// The node's uplink and the world at its other end. The addresses are those reserved for documentation.
var (
	nodeUplink = []netip.Prefix{netip.MustParsePrefix("192.0.2.2/24"), netip.MustParsePrefix("2001:db8::2/64")}
	worldAddrs = []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("2001:db8::1/64")}
)

// furnish makes the process's new namespaces a node of their own: nothing of it is the machine's but /dev and the disk.
func furnish() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	for _, m := range []struct{ fstype, dir, data string }{
		{"proc", "/proc", ""},
		{"sysfs", "/sys", ""}, // the machine's shows the machine's devices
		{"bpf", "/sys/fs/bpf", "mode=0700"},
		{"tmpfs", "/run", "mode=0755"},
	} {
		if err := unix.Mount("quickstart", m.dir, m.fstype, unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, m.data); err != nil {
			return fmt.Errorf("mount %s on %s: %w", m.fstype, m.dir, err)
		}
	}
	if err := os.Mkdir(netnsDir, 0o755); err != nil {
		return err
	}
	return setUp("lo")
}

func setUp(name string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("link %s: %w", name, err)
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	return nil
}

// addNetns creates a named netns, as a container runtime does, and gives its path.
func addNetns(name string) (string, error) {
	path := filepath.Join(netnsDir, name)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return "", err
	}
	_ = f.Close() // only a place to mount on
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread is of another netns and ends here
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			result <- fmt.Errorf("unshare: %w", err)
			return
		}
		result <- unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "")
	}()
	if err := <-result; err != nil {
		return "", fmt.Errorf("create netns %s: %w", name, err)
	}
	return path, inNetns(path, func() error { return setUp("lo") })
}

func inNetns(path string, f func() error) error {
	return ns.WithNetNSPath(path, func(ns.NetNS) error { return f() })
}

// addWorld makes the world, a netns that the node's uplink leads to, and the node's default routes through it. The world
// has no route back to the pods: what reaches it was masqueraded.
func addWorld() error {
	path, err := addNetns("world")
	if err != nil {
		return err
	}
	world, err := ns.GetNS(path)
	if err != nil {
		return err
	}
	defer world.Close()
	veth := &netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: "uplink0"}, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(world.Fd())),
	}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("create the uplink: %w", err)
	}
	if err := address("uplink0", nodeUplink); err != nil {
		return err
	}
	if err := world.Do(func(ns.NetNS) error { return address("eth0", worldAddrs) }); err != nil {
		return err
	}
	for i, dst := range []string{"0.0.0.0/0", "::/0"} {
		_, n, err := net.ParseCIDR(dst)
		if err != nil {
			return err
		}
		if err := netlink.RouteAdd(&netlink.Route{Dst: n, Gw: worldAddrs[i].Addr().AsSlice()}); err != nil {
			return fmt.Errorf("add the node's default route %s: %w", dst, err)
		}
	}
	return nil
}

func address(name string, prefixes []netip.Prefix) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("link %s: %w", name, err)
	}
	// No fe80:: address: it would appear when duplicate address detection ends, in the middle of a comparison.
	if err := netlink.LinkSetIP6AddrGenMode(l, nl.IN6_ADDR_GEN_MODE_NONE); err != nil {
		return fmt.Errorf("set %s's address generation mode: %w", name, err)
	}
	for _, p := range prefixes {
		n := &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
		// Nobody else is on this link, and the first ping need not wait for duplicate address detection.
		if err := netlink.AddrAdd(l, &netlink.Addr{IPNet: n, Flags: unix.IFA_F_NODAD}); err != nil {
			return fmt.Errorf("add %s to %s: %w", p, name, err)
		}
	}
	return setUp(name)
}

// serveStreams answers transfers on the node and in the world until the returned function is called.
func serveStreams() (stop func(), err error) {
	var listeners []net.Listener
	stop = func() {
		for _, l := range listeners {
			_ = l.Close()
		}
	}
	listen := func() error {
		l, err := net.Listen("tcp", net.JoinHostPort("::", strconv.Itoa(stream.Port)))
		if err == nil {
			listeners = append(listeners, l)
		}
		return err
	}
	if err := listen(); err != nil {
		return stop, err
	}
	if err := inNetns(filepath.Join(netnsDir, "world"), listen); err != nil {
		return stop, err
	}
	for _, l := range listeners {
		go func() { _ = stream.Serve(l) }() // a transfer that it does not serve is seen at its client
	}
	return stop, nil
}
