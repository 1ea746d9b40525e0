package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/tapir-cni/tapir/tap"
	"github.com/tapir-cni/tapir/test/bench/node"
	"github.com/vishvananda/netlink"
)

const (
	ifName   = "eth0"
	guestTAP = "guest0"

	// guestRing is the guest's transmit ring in frames: longer than the receiver's window, because the tun driver drops what does
	// not fit, where a virtio-net driver would stop its queue.
	guestRing = 1 << 14
)

// A sandbox is a pod with the TAP that tapir made, and a guest: a netns of its own whose kernel sends and receives through
// another TAP. Frames cross between the two through a pump alone.
type sandbox struct {
	pod, guest string // netns
	tap        string // in pod
	tapIndex   int
	hostEnd    string // on the node
	mac        net.HardwareAddr
	address    netip.Prefix
	gateway    netip.Addr
	bin        string
}

func (s *sandbox) config() ([]byte, error) {
	return json.Marshal(map[string]any{
		"cniVersion": "1.0.0", "name": "bench-napi", "type": "tapir", "tapName": s.tap, "mtu": mtu,
		"ipam": map[string]any{"type": "tapir-ipam", "ranges": [][]map[string]any{{{"subnet": "10.203.0.0/24"}}},
			"routes": []map[string]any{{"dst": "0.0.0.0/0"}}},
	})
}

// mtu of the TAP and of the guest, in bytes.
const mtu = 1500

// newSandbox runs tapir's ADD in the netns pod and makes the guest in the netns guest by what the result says.
func newSandbox(bin, pod, guest string) (*sandbox, error) {
	// The name is this process's alone, so that the kernel threads that carry it are known.
	s := &sandbox{pod: pod, guest: guest, bin: bin, tap: fmt.Sprintf("nb%d", os.Getpid())}
	stdout, err := s.call("ADD")
	if err != nil {
		return nil, err
	}
	err = s.read(stdout)
	if err == nil {
		err = node.In(pod, s.findTAP)
	}
	if err == nil {
		err = node.In(guest, s.makeGuest)
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// close runs tapir's DEL. The guest goes with the node.
func (s *sandbox) close() error {
	_, err := s.call("DEL")
	return err
}

func (s *sandbox) call(command string) ([]byte, error) {
	config, err := s.config()
	if err != nil {
		return nil, err
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(filepath.Join(s.bin, "tapir"))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(config), &stdout, &stderr
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "CNI_COMMAND=" + command, "CNI_CONTAINERID=bench-napi", "CNI_NETNS=" + s.pod,
		"CNI_IFNAME=" + ifName, "CNI_PATH=" + s.bin}
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s of tapir: %w: %s %s", command, err, strings.TrimSpace(stdout.String()), strings.TrimSpace(stderr.String()))
	}
	return stdout.Bytes(), nil
}

func (s *sandbox) read(stdout []byte) error {
	parsed, err := types100.NewResult(stdout)
	if err != nil {
		return fmt.Errorf("read the result: %w", err)
	}
	result, err := types100.GetResult(parsed)
	if err != nil {
		return err
	}
	found := false
	for _, i := range result.Interfaces {
		switch {
		case i.Sandbox == "":
			s.hostEnd = i.Name
		case i.Name == s.tap:
			found = true
		case i.Name == ifName:
			if s.mac, err = net.ParseMAC(i.Mac); err != nil {
				return fmt.Errorf("interface %q: %w", i.Name, err)
			}
		}
	}
	for _, ip := range result.IPs {
		if ip.Address.IP.To4() != nil {
			if s.address, err = netip.ParsePrefix(ip.Address.String()); err != nil {
				return err
			}
			if s.gateway, err = netip.ParseAddr(ip.Gateway.String()); err != nil {
				return err
			}
		}
	}
	if !found || s.hostEnd == "" || s.mac == nil || !s.gateway.IsValid() {
		return fmt.Errorf("the result names no TAP of ours, host end, guest MAC or IPv4 gateway: %s", stdout)
	}
	return nil
}

func (s *sandbox) findTAP() error {
	link, err := netlink.LinkByName(s.tap)
	if err != nil {
		return fmt.Errorf("find tap %q: %w", s.tap, err)
	}
	s.tapIndex = link.Attrs().Index
	return nil
}

// makeGuest gives the guest's netns a TAP with the guest's MAC, address and default route.
func (s *sandbox) makeGuest() error {
	if err := tap.Create(tap.Spec{Name: guestTAP, Queues: 1}); err != nil {
		return err
	}
	link, err := netlink.LinkByName(guestTAP)
	if err != nil {
		return err
	}
	_, network, err := net.ParseCIDR(s.address.String())
	if err != nil {
		return err
	}
	network.IP = s.address.Addr().AsSlice()
	return errors.Join(
		netlink.LinkSetHardwareAddr(link, s.mac),
		netlink.LinkSetTxQLen(link, guestRing),
		netlink.LinkSetMTU(link, mtu),
		netlink.AddrAdd(link, &netlink.Addr{IPNet: network}),
		netlink.LinkSetUp(link),
		netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: s.gateway.AsSlice()}),
	)
}

// counters are a device's in its netns: frames and bytes that it took in, frames towards it that it dropped.
type counters struct {
	frames, bytes, dropped uint64
}

func (c counters) minus(before counters) counters {
	return counters{c.frames - before.frames, c.bytes - before.bytes, c.dropped - before.dropped}
}

// bytesPerFrame is 0 where there was no frame.
func (c counters) bytesPerFrame() float64 {
	if c.frames == 0 {
		return 0
	}
	return float64(c.bytes) / float64(c.frames)
}

// readCounters asks in the calling thread's netns.
func readCounters(name string) (counters, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return counters{}, fmt.Errorf("counters of %q: %w", name, err)
	}
	st := link.Attrs().Statistics
	return counters{st.RxPackets, st.RxBytes, st.TxDropped}, nil
}
