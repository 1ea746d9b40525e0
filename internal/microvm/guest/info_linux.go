package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tapir-cni/tapir/internal/microvm/agentapi"
)

func readInfo(card string) (agentapi.Info, error) {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return agentapi.Info{}, err
	}
	var si unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &si); err != nil {
		return agentapi.Info{}, err
	}
	link, err := netlink.LinkByName(card)
	if err != nil {
		return agentapi.Info{}, fmt.Errorf("link %s: %w", card, err)
	}
	rx, err := filepath.Glob("/sys/class/net/" + card + "/queues/rx-*")
	if err != nil {
		return agentapi.Info{}, err
	}
	resolv, err := os.ReadFile("/etc/resolv.conf")
	if err != nil {
		return agentapi.Info{}, err
	}
	info := agentapi.Info{
		Kernel: unix.ByteSliceToString(uts.Release[:]), CPUs: runtime.NumCPU(), Uptime: time.Duration(si.Nano()),
		IfName: card, MAC: link.Attrs().HardwareAddr.String(), MTU: link.Attrs().MTU, RxQueues: len(rx), Resolv: string(resolv),
	}
	if info.Pairs, err = channels(card); err != nil {
		return agentapi.Info{}, err
	}
	addrs, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return agentapi.Info{}, fmt.Errorf("list addresses of %s: %w", card, err)
	}
	for _, a := range addrs {
		info.Addresses = append(info.Addresses, a.IPNet.String())
		if a.Flags&unix.IFA_F_TENTATIVE != 0 {
			info.Tentative = append(info.Tentative, a.IPNet.String())
		}
	}
	routes, err := dump(func() ([]netlink.Route, error) { return netlink.RouteList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return agentapi.Info{}, fmt.Errorf("list routes of %s: %w", card, err)
	}
	for _, r := range routes {
		info.Routes = append(info.Routes, r.String())
	}
	return info, nil
}

// readCounters gives the card's statistics and the kernel's IP and ICMP counters.
func readCounters(card string) (agentapi.Counters, error) {
	c := agentapi.Counters{Link: map[string]uint64{}, SNMP: map[string]uint64{}}
	if err := readStatistics("/sys/class/net/"+card+"/statistics", c.Link); err != nil {
		return c, err
	}
	var err error
	if c.Card, err = statistics(card); err != nil {
		return c, err
	}
	snmp, err := os.ReadFile("/proc/net/snmp")
	if err != nil {
		return c, err
	}
	readSNMP(string(snmp), c.SNMP)
	snmp6, err := os.ReadFile("/proc/net/snmp6")
	if err != nil {
		return c, err
	}
	for line := range strings.Lines(string(snmp6)) {
		if f := strings.Fields(line); len(f) == 2 {
			if n, err := strconv.ParseUint(f[1], 10, 64); err == nil {
				c.SNMP[f[0]] = n
			}
		}
	}
	return c, nil
}

// readStatistics reads the numbers in the files of dir.
func readStatistics(dir string, into map[string]uint64) error {
	files, err := filepath.Glob(dir + "/*")
	if err != nil {
		return err
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
		if err != nil {
			return fmt.Errorf("%s: %w", f, err)
		}
		into[filepath.Base(f)] = n
	}
	return nil
}

// readSNMP reads pairs of lines, names and values, each after "Proto:". Values that are signed are left out.
func readSNMP(text string, into map[string]uint64) {
	lines := strings.Split(text, "\n")
	for i := 0; i+1 < len(lines); i += 2 {
		names, values := strings.Fields(lines[i]), strings.Fields(lines[i+1])
		if len(names) != len(values) || len(names) == 0 {
			continue
		}
		for j := 1; j < len(names); j++ {
			if n, err := strconv.ParseUint(values[j], 10, 64); err == nil {
				into[strings.TrimSuffix(names[0], ":")+"."+names[j]] = n
			}
		}
	}
}

var neighborStates = map[int]string{
	netlink.NUD_INCOMPLETE: "incomplete", netlink.NUD_REACHABLE: "reachable", netlink.NUD_STALE: "stale",
	netlink.NUD_DELAY: "delay", netlink.NUD_PROBE: "probe", netlink.NUD_FAILED: "failed", netlink.NUD_PERMANENT: "permanent",
	netlink.NUD_NOARP: "noarp",
}

func readNeighbors(card string) ([]agentapi.Neighbor, error) {
	link, err := netlink.LinkByName(card)
	if err != nil {
		return nil, fmt.Errorf("link %s: %w", card, err)
	}
	list, err := dump(func() ([]netlink.Neigh, error) { return netlink.NeighList(link.Attrs().Index, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list neighbours of %s: %w", card, err)
	}
	var out []agentapi.Neighbor
	for _, n := range list {
		out = append(out, agentapi.Neighbor{Addr: n.IP.String(), MAC: n.HardwareAddr.String(), State: neighborStates[n.State]})
	}
	return out, nil
}
