package cni_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// What a guest's driver offers: nothing, or checksums and TCP segmentation, as Linux does on virtio-net.
const (
	offloadNone = 0
	offloadTSO  = unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6
)

// A stack is a guest with the kernel's own network stack: a netns with a TAP of its own, whose frames a pump carries to the pod's
// TAP and back, virtio-net headers included, as a VMM does.
type stack struct {
	t     testing.TB
	netns string
	tap   string
	ip    map[bool]netip.Addr // true is IPv4
}

// bootStack starts a guest on the TAP that a result names. It ends with the test.
func bootStack(p *pod, r *types100.Result, offload int) *stack {
	t := p.n.t
	t.Helper()
	s := &stack{t: t, netns: testnode.NewNetns(t), ip: map[bool]netip.Addr{}}
	var mac net.HardwareAddr
	mtu := 0
	for _, i := range r.Interfaces {
		switch {
		case i.Sandbox != p.netns:
		case i.Name == p.ifName:
			mac, _ = net.ParseMAC(i.Mac)
		default:
			s.tap, mtu = i.Name, i.Mtu
		}
	}
	inside, err := openQueue(t, s.netns, "guest0", qemuFlags)
	mustDo(t, err)
	outside, err := openQueue(t, p.netns, s.tap, qemuFlags)
	mustDo(t, err)
	for _, fd := range []int{inside, outside} {
		mustDo(t, unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, offload))
	}
	testnode.In(t, s.netns, func() {
		link := link(t, "guest0")
		mustDo(t, errors.Join(
			os.WriteFile("/proc/sys/net/ipv6/conf/guest0/accept_dad", []byte("0"), 0),
			netlink.LinkSetHardwareAddr(link, mac), netlink.LinkSetMTU(link, mtu), netlink.LinkSetTxQLen(link, 1<<14), netlink.LinkSetUp(link)))
		setUp(t, "lo")
		for _, c := range r.IPs {
			addr, _ := netip.AddrFromSlice(c.Address.IP)
			ones, _ := c.Address.Mask.Size()
			s.ip[addr.Unmap().Is4()] = addr.Unmap()
			addAddr(t, "guest0", netip.PrefixFrom(addr.Unmap(), ones))
			gw, _ := netip.AddrFromSlice(c.Gateway)
			addRoute(t, map[bool]string{true: "0.0.0.0/0", false: "::/0"}[addr.Unmap().Is4()], gw.Unmap())
		}
	})
	pump(t, inside, outside)
	return s
}

// pump moves frames between two queues until the test ends.
func pump(t testing.TB, a, b int) {
	var stop atomic.Bool
	done := make(chan error, 2)
	for _, way := range [][2]int{{a, b}, {b, a}} {
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			done <- carry(way[0], way[1], &stop)
		}()
	}
	t.Cleanup(func() {
		stop.Store(true)
		for range 2 {
			if err := <-done; err != nil {
				t.Errorf("pump: %v", err)
			}
		}
		_ = unix.Close(a)
		_ = unix.Close(b)
	})
}

func carry(from, to int, stop *atomic.Bool) error {
	buf := make([]byte, 1<<17)
	for !stop.Load() {
		n, err := unix.Read(from, buf)
		switch {
		case errors.Is(err, unix.EAGAIN):
			if _, err := unix.Poll([]unix.PollFd{{Fd: int32(from), Events: unix.POLLIN}}, 20); err != nil && !errors.Is(err, unix.EINTR) {
				return err
			}
			continue
		case errors.Is(err, unix.EBADFD):
			return nil // the TAP is gone
		case err != nil:
			return fmt.Errorf("read: %w", err)
		}
		if _, err := unix.Write(to, buf[:n]); err != nil && !errors.Is(err, unix.EBADFD) && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.ENOBUFS) {
			return fmt.Errorf("write of %d bytes: %w", n, err)
		}
	}
	return nil
}

// A conversation is a TCP connection between two netns.
type conversation struct{ client, server net.Conn }

// converse connects from one netns to an address in another.
func converse(t testing.TB, from, to string, addr netip.Addr) *conversation {
	t.Helper()
	var l net.Listener
	var err error
	testnode.In(t, to, func() { l, err = net.Listen("tcp", netip.AddrPortFrom(addr, 0).String()) })
	mustDo(t, err)
	defer l.Close()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, _ := l.Accept()
		accepted <- c
	}()
	c := &conversation{}
	for deadline := time.Now().Add(4 * patience); ; {
		testnode.In(t, from, func() { c.client, err = net.DialTimeout("tcp", l.Addr().String(), patience) })
		if err == nil || time.Now().After(deadline) {
			break
		}
	}
	if err != nil {
		t.Fatalf("connect to %s: %v", l.Addr(), err)
	}
	c.server = <-accepted
	t.Cleanup(func() { _ = c.client.Close(); _ = c.server.Close() })
	return c
}

// rate sends from one end to the other and gives how much comes in a second, in bits, after the start of the flow.
func rate(t testing.TB, from, to net.Conn, settle, measure time.Duration) float64 {
	t.Helper()
	var got atomic.Int64
	sent, received := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(sent)
		buf := make([]byte, 1<<16)
		for {
			if _, err := from.Write(buf); err != nil {
				return
			}
		}
	}()
	go func() {
		defer close(received)
		buf := make([]byte, 1<<16)
		for {
			n, err := to.Read(buf)
			got.Add(int64(n))
			if err != nil {
				if !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("receive: %v", err)
				}
				return
			}
		}
	}()
	time.Sleep(settle)
	start, before := time.Now(), got.Load()
	time.Sleep(measure)
	bits := float64(got.Load()-before) * 8 / time.Since(start).Seconds()
	_ = from.SetDeadline(time.Unix(1, 0))
	<-sent
	_ = from.SetDeadline(time.Time{})
	_ = to.SetDeadline(time.Unix(1, 0))
	<-received
	_ = to.SetDeadline(time.Time{})
	return bits
}
