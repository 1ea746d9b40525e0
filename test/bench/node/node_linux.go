// Package node gives a benchmark a node of its own: a command re-executed in new network and mount namespaces, which the
// kernel takes apart when it ends. Nothing is made in the machine's own.
package node

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// insideEnv holds the inode of the mount namespace that the benchmark may work in.
const insideEnv = "TAPIR_BENCH_NODE"

// insideNew is insideEnv's value for the process whose namespaces are new and bare.
const insideNew = "set-up"

// Inside says whether this process is in namespaces of its own.
func Inside() bool {
	if os.Getenv(insideEnv) != insideNew {
		return false
	}
	// The parent's mount namespace is another one, whoever set the variable.
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return false
	}
	parents, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", os.Getppid()))
	return err == nil && own != parents
}

// Reexec runs this command again in new network and mount namespaces, and ends as it ends.
func Reexec() error {
	if os.Geteuid() != 0 {
		return errors.New("only root can make network namespaces")
	}
	runtime.LockOSThread() // Pdeathsig is sent when the thread that forked ends
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), insideEnv+"="+insideNew)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS, Pdeathsig: unix.SIGKILL}
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		os.Exit(max(exit.ExitCode(), 1))
	}
	return err
}

// A Node is the host's side of the benchmark.
type Node struct {
	count int // netns made so far
}

const netnsDir = "/run/netns"

// New furnishes the namespaces that the process is in: own /sys, bpffs and /run, lo up, and an uplink with the
// default route, since plugins look for one.
func New() (*Node, error) {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return nil, fmt.Errorf("make mounts private: %w", err)
	}
	for _, m := range []struct{ kind, dir string }{{"sysfs", "/sys"}, {"bpf", "/sys/fs/bpf"}, {"tmpfs", "/run"}} {
		if err := unix.Mount("bench", m.dir, m.kind, 0, ""); err != nil {
			return nil, fmt.Errorf("mount %s on %s: %w", m.kind, m.dir, err)
		}
	}
	if err := os.Mkdir(netnsDir, 0o755); err != nil {
		return nil, err
	}
	n := &Node{}
	world, err := n.NewNetns()
	if err != nil {
		return nil, err
	}
	return n, setUplink(world)
}

// setUplink makes a veth from the node to the netns world, which stands for everything outside.
func setUplink(world string) error {
	f, err := os.Open(world)
	if err != nil {
		return err
	}
	defer f.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = "uplink0", 1500
	uplink := &netlink.Veth{LinkAttrs: attrs, PeerName: "node0", PeerNamespace: netlink.NsFd(f.Fd())}
	if err = netlink.LinkAdd(uplink); err != nil {
		return fmt.Errorf("create the uplink: %w", err)
	}
	address := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(192, 0, 2, 1), Mask: net.CIDRMask(24, 32)}}
	if err = netlink.AddrAdd(uplink, address); err != nil {
		return fmt.Errorf("give the uplink its address: %w", err)
	}
	for _, name := range []string{"lo", "uplink0"} {
		if err = setUp(name); err != nil {
			return err
		}
	}
	err = netlink.RouteAdd(&netlink.Route{LinkIndex: uplink.Attrs().Index, Gw: net.IPv4(192, 0, 2, 254)})
	if err != nil {
		return fmt.Errorf("add the default route: %w", err)
	}
	return nil
}

func setUp(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	return nil
}

// NewNetns makes a network namespace as a runtime does, lo down, and gives its path. It stays until the process ends:
// taking one apart costs the kernel time that the next measurement would pay.
func (n *Node) NewNetns() (string, error) {
	n.count++
	path := filepath.Join(netnsDir, fmt.Sprintf("s%d", n.count))
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if err != nil {
		return "", err
	}
	f.Close()
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			result <- err
			return
		}
		result <- unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "")
	}()
	if err := <-result; err != nil {
		return "", fmt.Errorf("make network namespace %s: %w", path, err)
	}
	return path, nil
}

// NewNetnses makes several.
func (n *Node) NewNetnses(count int) ([]string, error) {
	paths := make([]string, count)
	for i := range paths {
		path, err := n.NewNetns()
		if err != nil {
			return nil, err
		}
		paths[i] = path
	}
	return paths, nil
}

// In runs f on a thread that is in the netns at path and ends with it.
func In(path string, f func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked
		ns, err := os.Open(path)
		if err != nil {
			result <- err
			return
		}
		defer ns.Close()
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			result <- fmt.Errorf("enter netns %s: %w", path, err)
			return
		}
		result <- f()
	}()
	return <-result
}
