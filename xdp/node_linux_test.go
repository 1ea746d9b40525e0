package xdp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tapir-cni/tapir/internal/testnode"
)

// patience is how long a frame may take through a device; silence is how long none may come.
const (
	patience = 3 * time.Second
	silence  = 50 * time.Millisecond
)

// vnetHdr is struct virtio_net_hdr of include/uapi/linux/virtio_net.h: what a TAP with IFF_VNET_HDR, and a packet socket
// with PACKET_VNET_HDR, put before each frame.
type vnetHdr struct {
	Flags, GSOType                         uint8
	HdrLen, GSOSize, CsumStart, CsumOffset uint16
}

const (
	vnetHdrLen  = 10
	needsCsum   = 1 // VIRTIO_NET_HDR_F_NEEDS_CSUM
	gsoTCPv4    = 1 // VIRTIO_NET_HDR_GSO_TCPV4
	offloadCsum = 1 // TUN_F_CSUM
	offloadTSO4 = 2 // TUN_F_TSO4
)

func (h vnetHdr) bytes() []byte {
	b, err := binary.Append(nil, binary.NativeEndian, h)
	if err != nil {
		panic(err)
	}
	return b
}

func splitVnet(b []byte) (h vnetHdr, frame []byte) {
	if _, err := binary.Decode(b, binary.NativeEndian, &h); err != nil {
		panic(err)
	}
	return h, b[vnetHdrLen:]
}

// port is a file that frames with vnet headers are written to and read from: a TAP's queue or a packet socket.
type port struct {
	t       testing.TB
	fd      int
	unicast bool // receive passes over what the host's stack says to groups
}

func (p port) send(h vnetHdr, frame []byte) {
	p.t.Helper()
	if _, err := unix.Write(p.fd, join(h.bytes(), frame)); err != nil {
		p.t.Fatalf("send %d bytes: %v", len(frame), err)
	}
}

// receive gives the next frame within the time, or none.
func (p port) receive(wait time.Duration) (h vnetHdr, frame []byte, ok bool) {
	p.t.Helper()
	buf := make([]byte, 1<<17)
	for deadline := time.Now().Add(wait); ; {
		n, err := unix.Read(p.fd, buf)
		if err == nil {
			h, frame = splitVnet(buf[:n])
			if p.unicast && frame[0]&1 != 0 {
				continue
			}
			return h, frame, true
		}
		if !errors.Is(err, unix.EAGAIN) {
			p.t.Fatalf("receive: %v", err)
		}
		left := time.Until(deadline)
		if left <= 0 {
			return h, nil, false
		}
		fds := []unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, int(left.Milliseconds())+1); err != nil && !errors.Is(err, unix.EINTR) {
			p.t.Fatalf("poll: %v", err)
		}
	}
}

// want receives one frame and compares it with the whole of frame.
func (p port) want(what string, frame []byte) vnetHdr {
	p.t.Helper()
	h, got, ok := p.receive(patience)
	if !ok {
		p.t.Fatalf("%s: nothing came", what)
	}
	if !bytes.Equal(got, frame) {
		p.t.Fatalf("%s:\ngot  %s\nwant %s", what, dump(got), dump(frame))
	}
	return h
}

// wantNothing waits a while for a frame that must not come.
func (p port) wantNothing(what string) {
	p.t.Helper()
	if _, got, ok := p.receive(silence); ok {
		p.t.Fatalf("%s: got %s", what, dump(got))
	}
}

// sandbox is one attachment on real devices: a TAP and a veth's pod end in the pod's netns, the host end in the host's.
type sandbox struct {
	t                 testing.TB
	p                 *Programs
	pod, host         string // netns paths
	tapIndex          uint32 // 0 for a plain pod
	podIndex, hostIdx uint32
	tap               port // the guest
	wire              port // a packet socket on the host end
}

// newSandbox makes the devices, without programs. IPv6 is off on them, so that only the tests' frames are on the way.
func newSandbox(t testing.TB) *sandbox {
	t.Helper()
	testnode.Require(t, "root", "bpf", "tun")
	s := &sandbox{t: t, p: newPrograms(t), pod: testnode.NewNetns(t), host: testnode.NewNetns(t)}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, ns := range []string{s.pod, s.host} {
		testnode.In(t, ns, func() {
			must(os.WriteFile("/proc/sys/net/ipv6/conf/all/disable_ipv6", []byte("1"), 0))
			must(os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0))
		})
	}
	testnode.In(t, s.host, func() {
		// An ifindex that no other device of the node has, as in production.
		attrs := netlink.LinkAttrs{Name: "veth0", Index: 1000, HardwareAddr: GatewayMAC}
		pod, err := os.Open(s.pod)
		must(err)
		defer pod.Close()
		must(netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerHardwareAddr: guestMAC, PeerNamespace: netlink.NsFd(int(pod.Fd()))}))
		s.hostIdx = up(t, "veth0")
		s.wire = packetSocket(t, s.hostIdx)
	})
	testnode.In(t, s.pod, func() {
		s.podIndex = up(t, "eth0")
		s.tap = openTAP(t, "tap-eth0")
		s.tapIndex = up(t, "tap-eth0")
	})
	// Until the kernel's link watch has run, a veth that was set up still has the qdisc that drops everything.
	testnode.In(t, s.host, func() { awaitUp(t, "veth0") })
	testnode.In(t, s.pod, func() { awaitUp(t, "eth0") })
	return s
}

func up(t testing.TB, name string) uint32 {
	t.Helper()
	l, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	// Above a page, so that a frame may be non-linear; below a GSO frame.
	if err := netlink.LinkSetMTU(l, 9000); err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(l); err != nil {
		t.Fatal(err)
	}
	return uint32(l.Attrs().Index)
}

func awaitUp(t testing.TB, name string) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		l, err := netlink.LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		if l.Attrs().OperState == netlink.OperUp {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: operational state %s, want up", name, l.Attrs().OperState)
		}
	}
}

// openTAP makes a TAP that is gone with its file.
func openTAP(t testing.TB, name string) port {
	t.Helper()
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	req, err := unix.NewIfreq(name)
	if err != nil {
		t.Fatal(err)
	}
	req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		t.Fatalf("create TAP: %v", err)
	}
	return port{t: t, fd: fd}
}

// packetSocket sends and receives on a device of the calling thread's netns; it does not see what it sends itself.
func packetSocket(t testing.TB, ifindex uint32) port {
	t.Helper()
	proto := int(binary.NativeEndian.Uint16(be16(unix.ETH_P_ALL)))
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, proto)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	for opt, v := range map[int]int{unix.PACKET_VNET_HDR: 1, unix.PACKET_IGNORE_OUTGOING: 1} {
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, opt, v); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: uint16(proto), Ifindex: int(ifindex)}); err != nil {
		t.Fatal(err)
	}
	return port{t: t, fd: fd}
}

// attach reserves the endpoints and attaches the programs of a pod with a TAP.
func (s *sandbox) attach(m Method, kind Redirect) {
	s.t.Helper()
	ep := guestEndpoint()
	ep.Peer, ep.Redirect, ep.Counters = s.podIndex, kind, s.tapIndex
	err := s.p.Reserve(map[uint32]Endpoint{
		s.tapIndex: ep,
		s.podIndex: {Role: RolePod, Peer: s.tapIndex, Redirect: RedirectEgress, Counters: s.tapIndex},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	testnode.In(s.t, s.pod, func() {
		for role, ifindex := range map[Role]uint32{RoleGuest: s.tapIndex, RolePod: s.podIndex} {
			if err := s.p.Attach(int(ifindex), role, m); err != nil {
				s.t.Fatal(err)
			}
		}
	})
}

// counters are those of the attachment, frames alone.
func (s *sandbox) counters() map[Reason]uint64 {
	s.t.Helper()
	c, err := s.p.Counters(s.tapIndex)
	if err != nil {
		s.t.Fatal(err)
	}
	out := make(map[Reason]uint64)
	for r, n := range c {
		out[r] = n.Frames
	}
	return out
}

// configureHost gives the host end the gateway's address, and the host a way to the guest.
func (s *sandbox) configureHost() {
	s.t.Helper()
	testnode.In(s.t, s.host, func() {
		l := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: int(s.hostIdx)}}
		gw := &net.IPNet{IP: gateway4.AsSlice(), Mask: net.CIDRMask(32, 32)}
		guest := guest4.Addr().AsSlice()
		if err := netlink.AddrAdd(l, &netlink.Addr{IPNet: gw}); err != nil {
			s.t.Fatal(err)
		}
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: int(s.hostIdx), Scope: netlink.SCOPE_LINK, Dst: &net.IPNet{IP: guest, Mask: net.CIDRMask(32, 32)}}); err != nil {
			s.t.Fatal(err)
		}
		if err := netlink.NeighAdd(&netlink.Neigh{LinkIndex: int(s.hostIdx), IP: guest, HardwareAddr: guestMAC, State: netlink.NUD_PERMANENT}); err != nil {
			s.t.Fatal(err)
		}
	})
}

// hostUDP is a UDP socket of the host's stack, on the gateway's address.
func (s *sandbox) hostUDP(listen int) *net.UDPConn {
	s.t.Helper()
	var conn *net.UDPConn
	testnode.In(s.t, s.host, func() {
		var err error
		conn, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(gateway4, uint16(listen))))
		if err != nil {
			s.t.Fatal(err)
		}
	})
	s.t.Cleanup(func() { _ = conn.Close() })
	return conn
}
