package cni_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// What follows stands in for Kata's runtime-rs where it has a DAN file (src/runtime-rs/crates/resource/src/network/dan.rs and
// network_info/network_info_from_dan.rs): its types, its defaults, its rules for routes, and how its VMMs open the TAP.

type danConfig struct {
	Netns   *string       `json:"netns"`
	Devices *[]danMachine `json:"devices"`
}

type danMachine struct {
	Name     *string `json:"name"`
	GuestMAC *string `json:"guest_mac"`
	Device   *struct {
		Type      *string `json:"type"`
		TapName   *string `json:"tap_name"`
		QueueNum  uint    `json:"queue_num"`
		QueueSize uint    `json:"queue_size"`
	} `json:"device"`
	Network *struct {
		Interface *struct {
			Addresses *[]string `json:"ip_addresses"`
			MTU       *uint64   `json:"mtu"`
			NType     string    `json:"ntype"`
			Flags     uint32    `json:"flags"`
		} `json:"interface"`
		Routes []struct {
			Dest, Gateway, Source string
			Scope, Flags, MTU     uint32
		} `json:"routes"`
		Neighbors []struct {
			IP    *string `json:"ip_address"`
			MAC   string  `json:"hardware_addr"`
			State uint32  `json:"state"`
			Flags uint32  `json:"flags"`
		} `json:"neighbors"`
	} `json:"network_info"`
}

// danGuest is what the guest's agent is told of one device, and how the VMM opens it.
type danGuest struct {
	name, tap  string
	mac        net.HardwareAddr
	pairs      uint // queue pairs; network_queues of Kata's configuration where the file says 0
	queueSize  uint
	mtu        uint64
	addresses  []netip.Prefix
	routes     []string // "DEST via GATEWAY", "default" for no destination
	neighbours []string // "IP MAC"
}

// networkQueues is Kata's default for TAPs that say no number of queues (DEFNETQUEUES).
const networkQueues = 1

// readDANFile reads the file as the runtime does in its current netns, which is the calling thread's: each TAP must be there.
func readDANFile(path string) (netns string, guests []danGuest, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", nil, err
	}
	var c danConfig
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields() // of ours, since a later Kata may be strict
	if err := d.Decode(&c); err != nil {
		return "", nil, err
	}
	if c.Devices == nil {
		return "", nil, errors.New("missing field devices")
	}
	if c.Netns != nil {
		netns = *c.Netns
	}
	for i, m := range *c.Devices {
		g, err := m.guest()
		if err != nil {
			return "", nil, fmt.Errorf("devices[%d]: %w", i, err)
		}
		l, err := netlink.LinkByName(g.tap)
		if err != nil {
			return "", nil, fmt.Errorf("devices[%d]: look up the tap %q: %w", i, g.tap, err)
		}
		if _, ok := l.(*netlink.Tuntap); !ok {
			return "", nil, fmt.Errorf("devices[%d]: %q is no tap but %s", i, g.tap, l.Type())
		}
		guests = append(guests, g)
	}
	return netns, guests, nil
}

func (m danMachine) guest() (g danGuest, err error) {
	switch {
	case m.Name == nil, m.Device == nil, m.Network == nil, m.Device != nil && (m.Device.Type == nil || m.Device.TapName == nil):
		return g, errors.New("missing field")
	case m.Network.Interface == nil || m.Network.Interface.Addresses == nil:
		return g, errors.New("missing field of network_info")
	case *m.Device.Type != "host-tap":
		return g, fmt.Errorf("unknown variant %q", *m.Device.Type)
	case m.GuestMAC == nil:
		return g, errors.New("guest_mac: Kata would make one up, which the spoof check drops")
	}
	g.name, g.tap, g.mtu = *m.Name, *m.Device.TapName, 1500
	if g.mac, err = net.ParseMAC(*m.GuestMAC); err != nil {
		return g, err
	}
	if g.pairs = m.Device.QueueNum; g.pairs == 0 {
		g.pairs = networkQueues
	}
	if g.queueSize = m.Device.QueueSize; g.queueSize == 0 {
		g.queueSize = 256
	}
	if m.Network.Interface.MTU != nil {
		g.mtu = *m.Network.Interface.MTU
	}
	for _, a := range *m.Network.Interface.Addresses {
		p, err := netip.ParsePrefix(a)
		if err != nil {
			return g, err
		}
		g.addresses = append(g.addresses, p)
	}
	return g, m.guestRoutes(&g)
}

// guestRoutes: the family comes from the destination, else the gateway, else the source; with none of the three it is an error.
func (m danMachine) guestRoutes(g *danGuest) error {
	for _, r := range m.Network.Routes {
		switch {
		case r.Dest != "":
			if _, err := netip.ParsePrefix(r.Dest); err != nil {
				return err
			}
			g.routes = append(g.routes, r.Dest+" via "+r.Gateway)
		case r.Gateway != "":
			if _, err := netip.ParseAddr(r.Gateway); err != nil {
				return err
			}
			g.routes = append(g.routes, "default via "+r.Gateway)
		case r.Source == "":
			return fmt.Errorf("failed to retrieve IP family from %+v", r)
		}
	}
	for _, e := range m.Network.Neighbors {
		if e.IP == nil {
			continue
		}
		p, err := netip.ParsePrefix(*e.IP)
		if err != nil {
			return err
		}
		if e.State != unix.NUD_PERMANENT {
			return fmt.Errorf("neighbour %s: state %d is not permanent", p, e.State)
		}
		g.neighbours = append(g.neighbours, p.Addr().String()+" "+e.MAC)
	}
	return nil
}

// flags are those that the VMM opens the TAP with, by name and once for each pair (hypervisor/src/utils.rs, open_named_tuntap).
func (g danGuest) flags() uint16 {
	if g.pairs > 1 {
		return unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR | unix.IFF_MULTI_QUEUE
	}
	return unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR
}

// bootDAN starts a guest of which nothing is known but what a DAN file says, on the node.
func (n *node) bootDAN(d danGuest) *guest {
	n.t.Helper()
	g := &guest{t: n.t, tap: d.tap, mac: d.mac, ip: map[bool]netip.Addr{}, gw: map[bool]netip.Addr{}, frames: make(chan packet, 4096)}
	for _, p := range d.addresses {
		g.ip[p.Addr().Is4()] = p.Addr()
	}
	for _, r := range d.routes {
		var gw string
		if _, err := fmt.Sscanf(r, "default via %s", &gw); err == nil {
			a := netip.MustParseAddr(gw)
			g.gw[a.Is4()] = a
		}
	}
	// The other queues are opened as well, and closed before frames could be led there.
	var rest []int
	for range d.pairs {
		fd, err := openQueue(n.t, n.netns, d.tap, d.flags())
		mustDo(n.t, err)
		rest = append(rest, fd)
	}
	for _, fd := range rest {
		mustDo(n.t, unix.Close(fd))
	}
	g.start(n.netns, d.flags())
	return g
}

// readDAN reads a file on the node.
func (n *node) readDAN(path string) (netns string, guests []danGuest) {
	n.t.Helper()
	n.in(func() {
		var err error
		if netns, guests, err = readDANFile(path); err != nil {
			n.t.Fatalf("Kata reads %s: %v", path, err)
		}
	})
	return netns, guests
}

// The reader refuses what Kata would refuse.
func TestDANReaderRefusesWhatKataWould(t *testing.T) {
	n := newBareNode(t)
	n.in(func() { addTap(t, "tap0") })
	device := func(device, info string) string {
		return `{"devices": [{"name": "eth0", "guest_mac": "02:00:00:00:00:01", "device": ` + device + `, "network_info": ` + info + `}]}`
	}
	const tap, info = `{"type": "host-tap", "tap_name": "tap0"}`, `{"interface": {"ip_addresses": ["10.0.0.2/24"]}}`
	for text, ok := range map[string]bool{
		device(tap, info): true,
		`{}`:              false,
		device(`{"type": "host-tap", "tap_name": "tap1"}`, info):                                                                     false,
		device(`{"type": "host-tap", "tap_name": "lo"}`, info):                                                                       false,
		device(`{"type": "tap", "tap_name": "tap0"}`, info):                                                                          false,
		device(`{"type": "host-tap", "tap_name": "tap0", "queue_num": -1}`, info):                                                    false,
		device(tap, `{"interface": {"ip_addresses": ["10.0.0.2"]}}`):                                                                 false,
		device(tap, `{"interface": {"ip_addresses": []}, "routes": [{"dest": "", "gateway": ""}]}`):                                  false,
		device(tap, `{"interface": {"ip_addresses": []}, "routes": [{"dest": "0.0.0.0/0x"}]}`):                                       false,
		device(tap, `{"interface": {"ip_addresses": []}, "neighbors": [{"ip_address": "10.0.0.1", "state": 128}]}`):                  false,
		device(tap, `{"interface": {"ip_addresses": [], "mtu": 1400}, "routes": [{"gateway": "10.0.0.1"}, {"dest": "10.0.0.0/8"}]}`): true,
	} {
		path := t.TempDir() + "/c1.json"
		mustDo(t, os.WriteFile(path, []byte(text), 0o600))
		n.in(func() {
			_, guests, err := readDANFile(path)
			if (err == nil) != ok {
				t.Errorf("%s: %v, want it to be read: %t", text, err, ok)
			}
			if ok && (guests[0].pairs != 1 || guests[0].queueSize != 256) {
				t.Errorf("%s: defaults not taken: %+v", text, guests[0])
			}
		})
	}
}
