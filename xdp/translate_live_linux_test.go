package xdp

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tapir-cni/tapir/internal/testnode"
)

// A clone is a guest of a node that has a kernel's network stack: a netns with a TAP whose frames go to the pod's TAP and back, with
// their vnet headers, as a VMM would move them. Inside, all clones have the same MAC and addresses.
type clone struct {
	*guest
	inside string // netns
}

const (
	stackTAP  = "guest0"
	allOffers = offloadCsum | offloadTSO4 | unix.TUN_F_TSO6
	liveTime  = 60 * time.Second // how long a busy machine may need for one exchange
)

// newClones makes a node with n clones.
func newClones(t testing.TB, n int, mode Mode) (*node, []*clone) {
	t.Helper()
	nd := newNode(t, 0, mode)
	nd.clones = true
	var out []*clone
	for i := range n {
		c := &clone{guest: nd.addGuest(i, mode), inside: testnode.NewNetns(t)}
		c.boot()
		out = append(out, c)
	}
	return nd, out
}

// boot gives the clone its stack and starts to move frames.
func (c *clone) boot() {
	c.t.Helper()
	var stack port
	testnode.In(c.t, c.inside, func() {
		for _, file := range []string{"accept_dad", "dad_transmits", "router_solicitations"} {
			c.must(os.WriteFile("/proc/sys/net/ipv6/conf/default/"+file, []byte("0"), 0))
		}
		stack = openTAP(c.t, stackTAP)
		c.must(unix.IoctlSetInt(stack.fd, unix.TUNSETOFFLOAD, allOffers))
		l, err := netlink.LinkByName(stackTAP)
		c.must(err)
		c.must(netlink.LinkSetHardwareAddr(l, guestMAC))
		c.must(netlink.LinkSetMTU(l, 1500))
		c.must(netlink.LinkSetTxQLen(l, 1<<14))
		c.must(netlink.LinkSetUp(l))
		for _, p := range []netip.Prefix{inside4, inside6} {
			ip := &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
			c.must(netlink.AddrAdd(l, &netlink.Addr{IPNet: ip, Flags: unix.IFA_F_NODAD}))
		}
		for _, gw := range insideGW {
			c.must(netlink.RouteAdd(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: gw.AsSlice()}))
		}
	})
	c.must(unix.IoctlSetInt(c.tap.fd, unix.TUNSETOFFLOAD, allOffers))
	var stop atomic.Bool
	done := make(chan struct{}, 2)
	for _, way := range [][2]int{{stack.fd, c.tap.fd}, {c.tap.fd, stack.fd}} {
		go func() {
			pump(way[0], way[1], &stop)
			done <- struct{}{}
		}()
	}
	c.t.Cleanup(func() { // before the files close
		stop.Store(true)
		<-done
		<-done
	})
}

// pump moves frames; what cannot be written for its content is lost, as on a wire.
func pump(from, to int, stop *atomic.Bool) {
	buf := make([]byte, 1<<17)
	for !stop.Load() {
		n, err := unix.Read(from, buf)
		if err != nil {
			fds := []unix.PollFd{{Fd: int32(from), Events: unix.POLLIN}}
			_, _ = unix.Poll(fds, 50)
			continue
		}
		for !stop.Load() {
			if _, err := unix.Write(to, buf[:n]); !errors.Is(err, unix.EAGAIN) {
				break
			}
		}
	}
}

// in runs a command in the guest and gives what it printed.
func (c *clone) in(name string, args ...string) (string, error) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), liveTime)
	defer cancel()
	var out []byte
	var err error
	testnode.In(c.t, c.inside, func() { out, err = exec.CommandContext(ctx, name, args...).CombinedOutput() })
	return string(out), err
}

// send moves bytes over TCP from c to the address, behind which to listens inside, and compares hashes and addresses.
func (c *clone) send(to *clone, v6 bool, size int) {
	c.t.Helper()
	in, at, own := inside4.Addr(), to.v4, c.v4
	if v6 {
		in, at, own = inside6.Addr(), to.v6, c.v6
	}
	var l net.Listener
	testnode.In(c.t, to.inside, func() {
		var err error
		l, err = net.Listen("tcp", netip.AddrPortFrom(in, 0).String())
		c.must(err)
	})
	defer l.Close()
	got := make(chan [32]byte, 1)
	from := make(chan netip.Addr, 1)
	go func() {
		defer close(got)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(liveTime))
		from <- conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr()
		h := sha256.New()
		if _, err := io.Copy(h, conn); err == nil {
			got <- [32]byte(h.Sum(nil))
		}
	}()
	data := make([]byte, size)
	r := rand.NewChaCha8([32]byte{byte(size)})
	_, _ = r.Read(data)
	testnode.In(c.t, c.inside, func() {
		conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(at, uint16(l.Addr().(*net.TCPAddr).Port)).String(), liveTime)
		c.must(err)
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(liveTime))
		if local := conn.LocalAddr().(*net.TCPAddr).AddrPort().Addr(); local != in {
			c.t.Errorf("the guest is %s to itself, want %s", local, in)
		}
		_, err = conn.Write(data)
		c.must(err)
	})
	if sum, ok := <-got; !ok || sum != sha256.Sum256(data) {
		c.t.Errorf("TCP of %d bytes to %s: hashes differ (arrived: %v)", size, at, ok)
	}
	if a := <-from; a != own {
		c.t.Errorf("the other clone sees %s, want %s", a, own)
	}
}

// datagrams sends UDP of each size and has it back.
func (c *clone) datagrams(to *clone, v6 bool, sizes ...int) {
	c.t.Helper()
	in, at := inside4.Addr(), to.v4
	if v6 {
		in, at = inside6.Addr(), to.v6
	}
	var echo net.PacketConn
	testnode.In(c.t, to.inside, func() {
		var err error
		echo, err = net.ListenPacket("udp", netip.AddrPortFrom(in, 0).String())
		c.must(err)
	})
	defer func() { _ = echo.Close() }()
	go func() {
		buf := make([]byte, 1<<16)
		for {
			n, from, err := echo.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = echo.WriteTo(buf[:n], from)
		}
	}()
	testnode.In(c.t, c.inside, func() {
		conn, err := net.Dial("udp", netip.AddrPortFrom(at, uint16(echo.LocalAddr().(*net.UDPAddr).Port)).String())
		c.must(err)
		defer conn.Close()
		for _, size := range sizes {
			if err := exchange(conn, size); err != nil {
				c.t.Errorf("UDP of %d bytes to %s: %v", size, at, err)
			}
		}
	})
}

// exchange sends one datagram until it comes back as it was: a busy machine loses some.
func exchange(conn net.Conn, size int) error {
	data := make([]byte, size)
	r := rand.NewChaCha8([32]byte{byte(size), 1})
	_, _ = r.Read(data)
	buf := make([]byte, 1<<16)
	var err error
	for range 20 {
		if _, err = conn.Write(data); err != nil {
			return err
		}
		_ = conn.SetReadDeadline(time.Now().Add(2 * time.Second))
		var n int
		if n, err = conn.Read(buf); err == nil {
			if n != size || sha256.Sum256(buf[:n]) != sha256.Sum256(data) {
				return fmt.Errorf("came back with %d bytes, or others", n)
			}
			return nil
		}
	}
	return err
}

// Two clones of one snapshot talk to each other and find out about the path, with all offloads on, on each path.
func TestClonesTalk(t *testing.T) {
	for _, mode := range []Mode{ModeOff, ModeNative, ModeGeneric} {
		t.Run(string(mode), func(t *testing.T) {
			nd, clones := newClones(t, 2, mode)
			a, b := clones[0], clones[1]
			for _, v6 := range []bool{false, true} {
				a.send(b, v6, 8<<20)
				b.send(a, v6, 1<<20)
				a.datagrams(b, v6, 1, 8, 1000, 1472, 1473, 9000, 60000, 65000)
				a.pings(b, v6)
			}
			nd.narrows(a, b)
			for _, c := range clones {
				c.wantNoFaults()
			}
		})
	}
}

func (c *clone) pings(to *clone, v6 bool) {
	c.t.Helper()
	at := to.v4
	if v6 {
		at = to.v6
	}
	for _, size := range []string{"8", "1472", "4000"} {
		if out, err := c.in("ping", "-c", "2", "-i", "0.2", "-W", "5", "-s", size, at.String()); err != nil {
			c.t.Errorf("ping with %s bytes: %v\n%s", size, err, out)
		}
	}
	// The first hop answers with an error that quotes the guest's packet: the guest knows it for its own only with its own address.
	out, err := c.in("ping", "-c", "1", "-W", "5", "-t", "1", at.String())
	if err == nil || !strings.Contains(out, "exceeded") {
		c.t.Errorf("ping with a TTL of 1: %v, want a time exceeded\n%s", err, out)
	}
}

// narrows gives the way to b a smaller MTU and has a find out.
func (nd *node) narrows(a, b *clone) {
	nd.t.Helper()
	testnode.In(nd.t, nd.host, func() {
		for _, addr := range []netip.Addr{b.v4, b.v6} {
			dst := &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(addr.BitLen(), addr.BitLen())}
			nd.must(netlink.RouteReplace(&netlink.Route{LinkIndex: int(b.hostIdx), Scope: netlink.SCOPE_LINK, Dst: dst, MTU: 1300}))
		}
	})
	if b.mode == ModeNative || b.mode == ModeGeneric {
		nd.must(nd.s.SetNoShortcut(b.tapIdx, true)) // the shortcut knows the TAP's MTU alone
	}
	for _, addr := range []netip.Addr{b.v4, b.v6} {
		_, _ = a.in("ping", "-c", "1", "-W", "2", "-M", "do", "-s", "1400", addr.String())
		out, _ := a.in("ip", "route", "get", addr.String())
		if !strings.Contains(out, "mtu 1300") {
			nd.t.Errorf("after an error about a packet that was too long the guest knows of\n%s, want mtu 1300", out)
		}
	}
	a.send(b, false, 1<<20)
	a.send(b, true, 1<<20)
}

// wantNoFaults fails the test where the programs dropped something.
func (c *clone) wantNoFaults() {
	c.t.Helper()
	counters, err := c.progs.Counters(c.tapIdx)
	c.must(err)
	for r, n := range counters {
		if r.Dropped() {
			c.t.Errorf("%d frames dropped as %s", n.Frames, r)
		}
	}
	if c.mode == "" { // it takes no part in the shortcut
		if counters[ReasonToHost].Frames == 0 {
			c.t.Error("nothing went to the host")
		}
		return
	}
	if paths := c.paths(); paths[ShortcutXDPToGuest] == 0 || paths[ShortcutTCToGuest] == 0 {
		c.t.Errorf("paths %v, want some frames to the guest by XDP and some by tc", paths)
	}
}
