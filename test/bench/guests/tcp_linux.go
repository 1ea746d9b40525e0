package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/tapir-cni/tapir/test/bench/guest"
	"github.com/tapir-cni/tapir/test/bench/node"
)

// chunk is what one write or read of a socket may move, in bytes.
const chunk = 1 << 18

// bulk sends TCP from one guest to the other as fast as it goes and gives bits per second of payload. The guests are netns with the
// kernel's stack, joined to the pods' TAPs by pumps. offload is a TUN_F_* mask of what the guests' drivers have.
func (p *pair) bulk(offload int, d time.Duration) (_ float64, err error) {
	for _, one := range p.pods {
		for _, q := range []*guest.Queue{one.queue, one.port} {
			if err := errors.Join(q.SetOffload(offload), q.Drain()); err != nil {
				return 0, err
			}
		}
		pump := guest.StartPump(one.port, one.queue)
		defer func() { err = errors.Join(err, pump.Stop()) }()
	}
	from, to, err := p.connect()
	if err != nil {
		return 0, err
	}
	var bytes atomic.Int64
	done := make(chan struct{}, 2)
	go func() {
		buf := make([]byte, chunk)
		for {
			if _, err := from.Write(buf); err != nil {
				break
			}
		}
		done <- struct{}{}
	}()
	go func() {
		buf := make([]byte, chunk)
		for {
			n, failed := to.Read(buf)
			bytes.Add(int64(n))
			if failed != nil {
				break
			}
		}
		done <- struct{}{}
	}()
	time.Sleep(max(d/4, 100*time.Millisecond)) // windows grow
	before, begin := bytes.Load(), time.Now()
	time.Sleep(d)
	for bytes.Load() == before && time.Since(begin) < patience {
		time.Sleep(time.Millisecond)
	}
	count, took := bytes.Load()-before, time.Since(begin)
	err = errors.Join(from.Close(), to.Close())
	<-done
	<-done
	if count == 0 {
		return 0, errors.Join(fmt.Errorf("no byte arrived within %s", patience), err)
	}
	return float64(count) * 8 / took.Seconds(), err
}

// connect makes the connection: the receiver listens on the address that it knows, the sender dials the pod's.
func (p *pair) connect() (from, to net.Conn, err error) {
	var listener *net.TCPListener
	err = node.In(p.receiver().inner, func() (failed error) {
		at := netip.AddrPortFrom(p.receiver().own.Address.Addr(), 0)
		listener, failed = net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(at))
		return failed
	})
	if err != nil {
		return nil, nil, fmt.Errorf("listen in the guest: %w", err)
	}
	defer func() { _ = listener.Close() }() // one connection was all that it was for
	port := uint16(listener.Addr().(*net.TCPAddr).Port)
	err = node.In(p.sender().inner, func() (failed error) {
		from, failed = net.DialTimeout("tcp4", netip.AddrPortFrom(p.receiver().address.Addr(), port).String(), patience)
		return failed
	})
	if err != nil {
		return nil, nil, fmt.Errorf("connect from the guest: %w", err)
	}
	if err = listener.SetDeadline(time.Now().Add(patience)); err == nil {
		to, err = listener.Accept()
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("accept in the guest: %w", err), from.Close())
	}
	if seen := to.RemoteAddr().(*net.TCPAddr).AddrPort().Addr(); seen != p.sender().address.Addr() {
		err = fmt.Errorf("the sender is %s to the receiver, want %s", seen, p.sender().address.Addr())
		return nil, nil, errors.Join(err, from.Close(), to.Close())
	}
	return from, to, nil
}
