package quickstart

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
)

// snapshot is a node as lines of text, each naming one thing and what is to be the same about it.
type snapshot []string

// settle is how long the kernel may take to dismantle what is deleted.
const settle = 5 * time.Second

// source lists one kind of thing in the caller's namespaces.
type source func() ([]string, error)

func take(sources ...source) (snapshot, error) {
	var s snapshot
	for _, f := range sources {
		lines, err := f()
		if err != nil {
			return nil, err
		}
		s = append(s, lines...)
	}
	slices.Sort(s)
	return s, nil
}

// differences lists what is new and what is gone, once both have had time to settle.
func differences(before snapshot, now func() (snapshot, error)) ([]string, error) {
	for deadline := time.Now().Add(settle); ; time.Sleep(50 * time.Millisecond) {
		after, err := now()
		if err != nil {
			return nil, err
		}
		var left []string
		for _, line := range after {
			if _, ok := slices.BinarySearch(before, line); !ok {
				left = append(left, "new: "+line)
			}
		}
		for _, line := range before {
			if _, ok := slices.BinarySearch(after, line); !ok {
				left = append(left, "gone: "+line)
			}
		}
		if len(left) == 0 || time.Now().After(deadline) {
			return left, nil
		}
	}
}

// outsideSnapshot is the machine. Of /run it takes what tapir could touch: other programs work there meanwhile.
func outsideSnapshot() (snapshot, error) {
	return take(linkLines, addressLines, routeLines, nftLines, sysctlLines, mountLines, fileLines("/sys/fs/bpf"),
		fileLines("/run/netns"), fileLines("/run/tapir"))
}

// outsideLeftovers compares the machine with before, and looks for processes of the node that has ended.
func outsideLeftovers(before snapshot, pidns *os.File) ([]string, error) {
	return differences(before, func() (snapshot, error) {
		s, err := outsideSnapshot()
		if err != nil {
			return nil, err
		}
		processes, err := processesIn(pidns)
		s = append(s, processes...)
		slices.Sort(s)
		return s, err
	})
}

// nodeSnapshot is the quick start's own node, whole.
func nodeSnapshot() (snapshot, error) {
	return take(linkLines, addressLines, routeLines, nftLines, sysctlLines, mountLines, fileLines("/sys/fs/bpf"), fileLines("/run"), processLines)
}

func linkLines() ([]string, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	var out []string
	for _, l := range links {
		a := l.Attrs()
		out = append(out, fmt.Sprintf("link %s: %s, MAC %s, MTU %d, alias %q", a.Name, l.Type(), a.HardwareAddr, a.MTU, a.Alias))
	}
	return out, nil
}

func addressLines() ([]string, error) {
	addrs, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	var out []string
	for _, a := range addrs {
		out = append(out, fmt.Sprintf("address %s on link %d", a.IPNet, a.LinkIndex))
	}
	return out, nil
}

func routeLines() ([]string, error) {
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	var out []string
	for _, r := range routes {
		out = append(out, fmt.Sprintf("route %s via %s on link %d, table %d", r.Dst, r.Gw, r.LinkIndex, r.Table))
	}
	return out, nil
}

// nftLines lists tables and chains. A kernel without nf_tables has none.
func nftLines() ([]string, error) {
	c, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	tables, err := c.ListTables()
	if err != nil {
		return []string{"nftables: " + err.Error()}, nil
	}
	var out []string
	for _, t := range tables {
		out = append(out, fmt.Sprintf("nft table %d %s", t.Family, t.Name))
	}
	chains, err := c.ListChains()
	if err != nil {
		return nil, fmt.Errorf("list nft chains: %w", err)
	}
	for _, ch := range chains {
		out = append(out, fmt.Sprintf("nft chain %d %s %s", ch.Table.Family, ch.Table.Name, ch.Name))
	}
	return out, nil
}

// restless are sysctls that change by themselves.
var restless = []string{
	"netfilter/nf_conntrack_count", "ipv4/tcp_fastopen_key", "ipv4/tcp_ehash_entries", "ipv4/udp_hash_entries", "/stable_secret",
}

// sysctlLines lists the network sysctls of the caller's netns.
func sysctlLines() ([]string, error) {
	const root = "/proc/sys/net"
	var out []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a device went while we looked
		}
		if err != nil || d.IsDir() || slices.ContainsFunc(restless, func(r string) bool { return strings.HasSuffix(path, r) }) {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return nil //nolint:nilerr // write-only, or without a value yet
		}
		out = append(out, "sysctl net"+strings.TrimPrefix(path, root)+" = "+strings.TrimSpace(string(b)))
		return nil
	})
	return out, err
}

func mountLines() ([]string, error) {
	b, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	var out []string
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 2 {
			out = append(out, "mount of "+f[2]+" on "+f[1])
		}
	}
	return out, nil
}

// fileLines lists all under dir, which need not be there.
func fileLines(dir string) source {
	return func() ([]string, error) {
		var out []string
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			out = append(out, "file "+path)
			return err
		})
		return out, err
	}
}

// processLines lists the processes of the caller's pid namespace.
func processLines() ([]string, error) {
	var out []string
	err := eachProcess(func(pid, name string) { out = append(out, "process "+pid+" "+name) })
	return out, err
}

// processesIn lists the processes of a pid namespace, seen from outside. Without one there are none.
func processesIn(pidns *os.File) ([]string, error) {
	if pidns == nil {
		return nil, nil
	}
	want, err := pidns.Stat()
	if err != nil {
		return nil, err
	}
	var out []string
	err = eachProcess(func(pid, name string) {
		if ns, err := os.Stat("/proc/" + pid + "/ns/pid"); err == nil && os.SameFile(ns, want) {
			out = append(out, "process "+pid+" "+name)
		}
	})
	return out, err
}

func eachProcess(f func(pid, name string)) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name()[0] < '0' || e.Name()[0] > '9' {
			continue
		}
		name, err := os.ReadFile("/proc/" + e.Name() + "/comm")
		if err != nil {
			continue // it has ended
		}
		f(e.Name(), strings.TrimSpace(string(name)))
	}
	return nil
}

func sorted(s snapshot) snapshot {
	slices.Sort(s)
	return s
}
