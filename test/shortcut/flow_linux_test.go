package shortcut_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/internal/testnode"
)

// A flow is a TCP connection of one guest to another on which the client sends until it is told to end, and the server what
// it receives back again.
type flow struct {
	t        testing.TB
	what     string
	client   net.Conn
	echoed   atomic.Int64 // bytes that came back
	ending   atomic.Bool
	sent     hash.Hash
	back     hash.Hash
	finished chan error // of three goroutines
}

// flowPort is where servers of flows listen.
const flowPort = 7009

// flowPace is the pause between two pieces: a flow is to live, not to fill the machine.
const flowPace = time.Millisecond

// converse starts a flow.
func converse(from, to *machine, family int) *flow {
	from.n.t.Helper()
	return converseAt(from, to.inside, to.addr(family), fmt.Sprintf("%s, %s to %s", families[family], from.id, to.id))
}

// converseAt starts one to a netns that has that address.
func converseAt(from *machine, netns string, at netip.Addr, what string) *flow {
	t := from.n.t
	t.Helper()
	f := &flow{t: t, what: what, sent: sha256.New(), back: sha256.New(), finished: make(chan error, 3)}
	var l net.Listener
	testnode.In(t, netns, func() {
		var err error
		l, err = net.ListenTCP("tcp", &net.TCPAddr{IP: at.AsSlice(), Port: flowPort})
		check(t, err)
	})
	defer l.Close()
	var err error
	f.client, err = from.dial(netip.AddrPortFrom(at, flowPort), connection{})
	check(t, err)
	check(t, l.(*net.TCPListener).SetDeadline(time.Now().Add(patience)))
	server, err := l.Accept()
	check(t, err)
	for _, conn := range []net.Conn{f.client, server} {
		check(t, conn.SetDeadline(time.Now().Add(3*patience)))
		t.Cleanup(func() { conn.Close() })
	}
	go func() { f.finished <- f.send() }()
	go func() { f.finished <- f.receive() }()
	go func() {
		// By read and write: what splices one socket into itself hides the time of either.
		_, err := io.Copy(struct{ io.Writer }{server}, struct{ io.Reader }{server})
		f.finished <- errors.Join(err, server.(*net.TCPConn).CloseWrite())
	}()
	return f
}

func (f *flow) send() error {
	r := rand.New(rand.NewPCG(1, uint64(len(f.what))))
	for !f.ending.Load() {
		piece := random(r, 1+r.IntN(4<<10))
		f.sent.Write(piece)
		if _, err := f.client.Write(piece); err != nil {
			return fmt.Errorf("send: %w", err)
		}
		time.Sleep(flowPace)
	}
	return f.client.(*net.TCPConn).CloseWrite()
}

func (f *flow) receive() error {
	buf := make([]byte, 64<<10)
	for {
		n, err := f.client.Read(buf)
		f.back.Write(buf[:n])
		f.echoed.Add(int64(n))
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("receive: %w", err)
		}
	}
}

// goesOn waits until more has come back than was under way.
func (f *flow) goesOn(when string) {
	f.t.Helper()
	const more = 64 << 10
	want := f.echoed.Load() + more
	for deadline := time.Now().Add(patience); f.echoed.Load() < want; time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			f.t.Fatalf("%s: stands still %s, after %d bytes", f.what, when, f.echoed.Load())
		}
	}
}

// stands waits until nothing comes back for a while.
func (f *flow) stands(when string) {
	f.t.Helper()
	const still = 400 * time.Millisecond
	for deadline := time.Now().Add(patience); ; {
		before := f.echoed.Load()
		time.Sleep(still)
		if f.echoed.Load() == before {
			return
		}
		if time.Now().After(deadline) {
			f.t.Errorf("%s: goes on %s", f.what, when)
			return
		}
	}
}

// ends ends the flow and wants all that was sent to have come back.
func (f *flow) ends() {
	f.t.Helper()
	f.ending.Store(true)
	if err := errors.Join(<-f.finished, <-f.finished, <-f.finished); err != nil {
		f.t.Errorf("%s: %v", f.what, err)
	}
	if sent, back := fmt.Sprintf("%x", f.sent.Sum(nil)), fmt.Sprintf("%x", f.back.Sum(nil)); sent != back {
		f.t.Errorf("%s: hash %s was sent, %s came back", f.what, sent, back)
	}
}
