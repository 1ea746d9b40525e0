package vhost

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	types "github.com/containernetworking/cni/pkg/types/100"
	"github.com/tapir-cni/tapir/test/bench/node"
	"github.com/vishvananda/netlink"
)

// Names of the set-up. The link's near end is in the sandbox beside the TAP: testpmd opens both.
const (
	containerID = "vhost"
	ifName      = "eth0"
	nearEnd     = "vp"
	farEnd      = "vc"
	network     = "bench-vhost"
	subnet      = "10.203.0.0/24"
)

// setup is the set-up of the 2022 thread around a TAP that tapir made in a sandbox:
//
//	receiver ← node ← host end ⇐ TAP ← vhost-net ← testpmd ← veth ← sender
//
// The sender has the guest's addresses, in a netns of its own.
type setup struct {
	RoundsConfig
	sandbox string // path of the netns
	client  string // path of the sender's netns
	tap     string
	gateway netip.Addr // where the receiver listens
	cpus    cpus
	softirq int // ksoftirqd of the vhost thread's CPU
}

// cpus says what runs where.
type cpus struct{ sender, testpmd, vhost, receiver int }

// spread uses the CPUs that there are. With two, sender and testpmd share one: they only have to keep the vhost thread busy. With one,
// what is measured is told apart by the thread that spends the time.
func spread(count int) cpus {
	switch {
	case count >= 4:
		return cpus{sender: 0, testpmd: 1, vhost: 2, receiver: 3}
	case count >= 2:
		return cpus{sender: 0, testpmd: 0, vhost: 1, receiver: 1}
	}
	return cpus{}
}

func newSetup(c RoundsConfig, n *node.Node) (*setup, error) {
	s := &setup{RoundsConfig: c, cpus: spread(runtime.NumCPU())}
	var err error
	if s.softirq, err = softirqThread(s.cpus.vhost); err != nil {
		return nil, err
	}
	if s.sandbox, err = n.NewNetns(); err != nil {
		return nil, err
	}
	if s.client, err = n.NewNetns(); err != nil {
		return nil, err
	}
	result, err := s.add()
	if err != nil {
		return nil, err
	}
	guest, err := s.read(result)
	if err != nil {
		return nil, err
	}
	return s, s.link(guest)
}

// add has tapir make the TAP, as a runtime does.
func (s *setup) add() (*types.Result, error) {
	config, err := json.Marshal(map[string]any{
		"cniVersion": "1.0.0", "name": network, "type": "tapir", "result": "cri",
		"ipam": map[string]any{
			"type": "tapir-ipam", "ranges": [][]map[string]any{{{"subnet": subnet}}}, "routes": []map[string]any{{"dst": "0.0.0.0/0"}},
		},
	})
	if err != nil {
		return nil, err
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(filepath.Join(s.Bin, "tapir"))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(config), &stdout, &stderr
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "CNI_COMMAND=ADD", "CNI_CONTAINERID=" + containerID, "CNI_NETNS=" + s.sandbox,
		"CNI_IFNAME=" + ifName, "CNI_PATH=" + s.Bin,
	}
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("tapir ADD: %w: %s %s", err, stdout.Bytes(), stderr.Bytes())
	}
	r := &types.Result{}
	if err := json.Unmarshal(stdout.Bytes(), r); err != nil {
		return nil, fmt.Errorf("tapir ADD: %w", err)
	}
	return r, nil
}

// guest is what the sender must look like to the TAP.
type guest struct {
	mac     net.HardwareAddr
	address netip.Prefix
}

// read takes the TAP's name and the guest's addresses out of ADD's result.
func (s *setup) read(r *types.Result) (guest, error) {
	var g guest
	for _, i := range r.Interfaces {
		switch {
		case i.Name == ifName:
			mac, err := net.ParseMAC(i.Mac)
			if err != nil {
				return guest{}, fmt.Errorf("result of ADD: %w", err)
			}
			g.mac = mac
		case strings.HasPrefix(i.Name, "tap"):
			s.tap = i.Name
		}
	}
	if len(r.IPs) != 1 || s.tap == "" || g.mac == nil {
		return guest{}, fmt.Errorf("result of ADD: want %s, a TAP and one address, got %+v", ifName, r)
	}
	ones, _ := r.IPs[0].Address.Mask.Size()
	address, ok := netip.AddrFromSlice(r.IPs[0].Address.IP)
	gateway, ok2 := netip.AddrFromSlice(r.IPs[0].Gateway)
	if !ok || !ok2 {
		return guest{}, fmt.Errorf("result of ADD: want an address with a gateway, got %+v", r.IPs[0])
	}
	g.address, s.gateway = netip.PrefixFrom(address.Unmap(), ones), gateway.Unmap()
	return g, nil
}

// link makes the veth from the sender to testpmd. The sender's end has no offload: frames come as a guest without TSO makes them.
func (s *setup) link(g guest) error {
	far, err := os.Open(s.client)
	if err != nil {
		return err
	}
	defer far.Close()
	err = node.In(s.sandbox, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = nearEnd, 1500
		veth := &netlink.Veth{LinkAttrs: attrs, PeerName: farEnd, PeerNamespace: netlink.NsFd(far.Fd()), PeerHardwareAddr: g.mac}
		if err := netlink.LinkAdd(veth); err != nil {
			return fmt.Errorf("create the link: %w", err)
		}
		return netlink.LinkSetUp(veth)
	})
	if err != nil {
		return err
	}
	return node.In(s.client, func() error {
		out, err := exec.Command("ethtool", "-K", farEnd, "tso", "off", "gso", "off", "tx", "off", "gro", "off").CombinedOutput()
		if err != nil {
			return fmt.Errorf("ethtool -K %s: %w: %s", farEnd, err, bytes.TrimSpace(out))
		}
		l, err := netlink.LinkByName(farEnd)
		if err != nil {
			return err
		}
		address := &netlink.Addr{IPNet: &net.IPNet{IP: g.address.Addr().AsSlice(), Mask: net.CIDRMask(g.address.Bits(), 32)}}
		if err := netlink.AddrAdd(l, address); err != nil {
			return fmt.Errorf("give the sender its address: %w", err)
		}
		return netlink.LinkSetUp(l)
	})
}
