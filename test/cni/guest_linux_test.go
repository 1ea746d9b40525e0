package cni_test

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/tapir-cni/tapir/internal/testnode"
	"golang.org/x/sys/unix"
)

// patience is how long a frame may take; silence is how long none may come where none may come at all.
const (
	patience = 3 * time.Second
	silence  = 60 * time.Millisecond
)

// vnetHeader is the size of struct virtio_net_hdr_mrg_rxbuf, which VMMs set on their queues.
const vnetHeader = 12

// Flags with which VMMs open a TAP by name.
const (
	firecrackerFlags = unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR
	qemuFlags        = firecrackerFlags // and IFF_MULTI_QUEUE for more than one queue
	qemuMQFlags      = qemuFlags | unix.IFF_MULTI_QUEUE
)

// openQueue opens a queue of the TAP of that name in a netns, as a VMM does.
func openQueue(t testing.TB, netns, name string, flags uint16) (fd int, err error) {
	t.Helper()
	testnode.In(t, netns, func() { fd, err = openQueueHere(name, flags) })
	return fd, err
}

func openQueueHere(name string, flags uint16) (int, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	ifr, err := unix.NewIfreq(name)
	if err == nil {
		ifr.SetUint16(flags)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
	}
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, vnetHeader)
	}
	if err != nil {
		return 0, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// A guest stands in for a VMM with a guest behind it: it has the TAP's queue open, answers ARP and ND for its own addresses,
// echo requests and UDP to port 7, keeps every frame that it gets, and knows nothing but the result of ADD.
type guest struct {
	t      testing.TB
	tap    string
	mac    net.HardwareAddr
	ip     map[bool]netip.Addr // its own address; true is IPv4
	gw     map[bool]netip.Addr
	gwMAC  net.HardwareAddr // learnt by ARP
	fd     int
	frames chan packet
}

// boot starts a guest on the TAP that a result names. It ends with the test, or by shutdown.
func boot(p *pod, r *types100.Result) *guest {
	t := p.n.t
	t.Helper()
	g := &guest{t: t, ip: map[bool]netip.Addr{}, gw: map[bool]netip.Addr{}, frames: make(chan packet, 4096)}
	netns := p.netns
	for _, i := range r.Interfaces {
		switch {
		case i.Sandbox != p.netns:
		case i.Name == p.ifName:
			g.mac, _ = net.ParseMAC(i.Mac)
		default:
			g.tap = i.Name
		}
	}
	if g.tap == "" && p.conf["vmm"] == "kata" {
		g.tap = kataTAP
	}
	if p.conf["placement"] == "host" { // whose result does not tell the guest's MAC
		l := p.n.list(p.id)
		g.mac, _ = net.ParseMAC(l.GuestMAC)
		g.tap, netns = l.TAP.Name, p.n.netns
	}
	for _, c := range r.IPs {
		addr, _ := netip.AddrFromSlice(c.Address.IP)
		addr = addr.Unmap()
		g.ip[addr.Is4()] = addr
		if gw, ok := netip.AddrFromSlice(c.Gateway); ok {
			g.gw[addr.Is4()] = gw.Unmap()
		}
	}
	if g.tap == "" || g.mac == nil || len(r.IPs) == 0 {
		t.Fatalf("the result names no TAP, MAC or address: %v", r)
	}
	flags := uint16(qemuFlags)
	if q, ok := p.conf["queues"].(int); ok && q > 1 {
		flags = qemuMQFlags
	}
	g.start(netns, flags)
	return g
}

// start opens a queue of the guest's TAP and reads it.
func (g *guest) start(netns string, flags uint16) {
	t := g.t
	t.Helper()
	fd, err := openQueue(t, netns, g.tap, flags)
	if err != nil {
		t.Fatalf("open tap %q: %v", g.tap, err)
	}
	g.fd = fd
	t.Cleanup(g.runReader())
	g.meetGateway()
}

// runReader reads the queue in a goroutine; the function that it gives ends that and closes the queue.
func (g *guest) runReader() (shutdown func()) {
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 1<<17)
		for {
			select {
			case <-stop:
				return
			default:
			}
			ready := []unix.PollFd{{Fd: int32(g.fd), Events: unix.POLLIN}}
			if n, err := unix.Poll(ready, 10); err != nil || n == 0 {
				continue
			}
			n, err := unix.Read(g.fd, buf)
			if errors.Is(err, unix.EBADFD) {
				return // the TAP is gone
			}
			if err == nil && n >= vnetHeader {
				g.take(parseFrame(bytes.Clone(buf[vnetHeader:n])))
			}
		}
	}()
	return sync.OnceFunc(func() {
		close(stop)
		<-done
		_ = unix.Close(g.fd)
	})
}

// take answers what asks for an answer and keeps the rest.
func (g *guest) take(p packet) {
	mine := p.to.IsValid() && p.to == g.ip[p.to.Is4()] && bytes.Equal(p.dst, g.mac)
	switch {
	case mine && p.transport == unix.IPPROTO_ICMP && p.data[0] == 8:
		g.write(eth(p.src, g.mac, unix.ETH_P_IP, icmp(p.to, p.from, 0, p.data[4:])))
	case mine && p.transport == unix.IPPROTO_ICMPV6 && p.data[0] == 128:
		g.write(eth(p.src, g.mac, unix.ETH_P_IPV6, icmp(p.to, p.from, 129, p.data[4:])))
	case mine && p.transport == unix.IPPROTO_UDP && len(p.data) > 8 && bytes.Equal(p.data[2:4], u16(7)):
		g.write(eth(p.src, g.mac, p.proto, udp(p.to, p.from, 7, int(p.data[0])<<8|int(p.data[1]), p.data[8:])))
	case p.proto == unix.ETH_P_ARP && len(p.payload) >= 28 && p.payload[7] == 1 && g.ip[true].IsValid() && bytes.Equal(p.payload[24:28], g.ip[true].AsSlice()):
		asker := netip.AddrFrom4([4]byte(p.payload[14:18]))
		g.send(p.src, unix.ETH_P_ARP, arp(2, g.mac, g.ip[true], p.payload[8:14], asker))
	case p.transport == unix.IPPROTO_ICMPV6 && len(p.data) >= 24 && p.data[0] == 135 && g.ip[false].IsValid() && !p.from.IsUnspecified() && bytes.Equal(p.data[8:24], g.ip[false].AsSlice()):
		g.send(p.src, unix.ETH_P_IPV6, advertise(g.ip[false], p.from, g.ip[false], g.mac))
	}
	select {
	case g.frames <- p:
	default: // nobody looks at so many
	}
}

func (g *guest) write(frame []byte) {
	if _, err := unix.Write(g.fd, append(make([]byte, vnetHeader), frame...)); err != nil && !errors.Is(err, unix.EBADFD) {
		g.t.Errorf("write to %s: %v", g.tap, err)
	}
}

// send writes a frame of the guest's own MAC.
func (g *guest) send(to net.HardwareAddr, proto int, payload []byte) {
	g.write(eth(to, g.mac, proto, payload))
}

// expect gives the first frame that fits, from now on until the wait is over.
func (g *guest) expect(wait time.Duration, fits func(packet) bool) (packet, bool) {
	deadline := time.After(wait)
	for {
		select {
		case p := <-g.frames:
			if fits(p) {
				return p, true
			}
		case <-deadline:
			return packet{}, false
		}
	}
}

// meetGateway asks for the gateway's MAC until there is an answer: the kernel starts a TAP's queue a moment after its
// opening.
func (g *guest) meetGateway() {
	g.t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		if mac := g.resolve(g.gw[g.gw[true].IsValid()], 50*time.Millisecond); mac != nil {
			g.gwMAC = mac
			return
		}
	}
	g.t.Fatalf("%s: nobody answers for the gateway %v", g.tap, g.gw)
}

// resolve asks by ARP or ND who has an address; nil where nobody answers.
func (g *guest) resolve(target netip.Addr, wait time.Duration) net.HardwareAddr {
	me := g.ip[target.Is4()]
	if target.Is4() {
		g.send(broadcast, unix.ETH_P_ARP, arp(1, g.mac, me, make([]byte, 6), target))
		p, ok := g.expect(wait, func(p packet) bool {
			return p.proto == unix.ETH_P_ARP && p.payload[7] == 2 && bytes.Equal(p.payload[14:18], target.AsSlice()) &&
				bytes.Equal(p.payload[18:28], join(g.mac, me.AsSlice())) && bytes.Equal(p.dst, g.mac)
		})
		if !ok {
			return nil
		}
		return p.payload[8:14]
	}
	group, groupMAC := solicitedNode(target)
	g.send(groupMAC, unix.ETH_P_IPV6, solicit(me, group, target, g.mac))
	p, ok := g.expect(wait, func(p packet) bool {
		return p.transport == unix.IPPROTO_ICMPV6 && len(p.data) >= 32 && p.data[0] == 136 && p.from.IsValid() && p.to == me &&
			bytes.Equal(p.data[8:24], target.AsSlice()) && bytes.Equal(sum(pseudo(p.from, p.to, unix.IPPROTO_ICMPV6, len(p.data)), p.data), []byte{0, 0})
	})
	if !ok {
		return nil
	}
	return p.data[26:32]
}

// ping sends one echo request by the gateway and tells whether its answer came back.
func (g *guest) ping(to netip.Addr) bool {
	g.t.Helper()
	body := join([]byte{0x74, 0x61, 0, 1}, []byte("tapir "+g.tap+" "+to.String()))
	g.send(g.gwMAC, etherType(to), echo(g.ip[to.Is4()], to, body))
	_, ok := g.expect(patience, func(p packet) bool {
		return p.from == to && p.to == g.ip[to.Is4()] && len(p.data) > 4 && (p.data[0] == 0 || p.data[0] == 129) && bytes.Equal(p.data[4:], body)
	})
	return ok
}

// wantPing wants an answer from each of the addresses.
func (g *guest) wantPing(to ...netip.Addr) {
	g.t.Helper()
	for _, a := range to {
		if !g.ping(a) {
			g.t.Errorf("%s: no answer from %s to %s", g.tap, a, g.ip[a.Is4()])
		}
	}
}
