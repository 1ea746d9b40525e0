package links_test

import (
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/internal/links"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { testnode.Main(m) }

const patience = 30 * time.Second

func open(t *testing.T) *links.Conn {
	t.Helper()
	c, err := links.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func listen(t *testing.T, buffer int) *links.Listener {
	t.Helper()
	l, err := links.Listen(buffer)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			t.Error(err)
		}
	})
	return l
}

func nsid(t *testing.T, c *links.Conn, path string) int {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	id, err := c.NSID(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// addVeth makes a pair in a namespace.
func addVeth(t *testing.T, path, name string) {
	t.Helper()
	testnode.In(t, path, func() {
		v := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, MTU: 1300, TxQLen: 77, Index: 4711}, PeerName: name + "p"}
		if err := netlink.LinkAdd(v); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(netlink.LinkSetAlias(v, "an alias"), netlink.LinkSetUp(v)); err != nil {
			t.Fatal(err)
		}
	})
}

// More links than fit into one message, of two namespaces, some of them not there: each has its answer.
func TestReadAnswersEach(t *testing.T) {
	testnode.Require(t, "root")
	c := open(t)
	ns := testnode.NewNetns(t)
	addVeth(t, ns, "v0")
	id := nsid(t, c, ns)
	if again := nsid(t, c, ns); again != id || id < 0 {
		t.Errorf("want the nsid that it has, got %d and %d", id, again)
	}
	var refs []links.Ref
	for range 100 {
		refs = append(refs, links.Ref{NSID: links.Here, Index: 1}, links.Ref{NSID: id, Index: 4711}, links.Ref{NSID: id, Index: 999}, links.Ref{NSID: 12345, Index: 1})
	}
	answers := make([]int, len(refs))
	err := c.Read(refs, func(i int, l *links.Link, err error) {
		answers[i]++
		ok := false
		switch i % 4 {
		case 0:
			ok = err == nil && l.Name == "lo" && l.Up && l.Ref == refs[i]
		case 1:
			ok = err == nil && l.Name == "v0" && l.MTU == 1300 && l.TxQueueLen == 77 && l.Alias == "an alias" && l.Kind == "veth" && l.Up && !l.Carrier && l.Ref == refs[i]
		case 2:
			ok = errors.Is(err, unix.ENODEV)
		case 3:
			ok = errors.Is(err, unix.EINVAL)
		}
		if !ok {
			t.Errorf("%s: got %+v, %v", refs[i], l, err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if slices.Min(answers) != 1 || slices.Max(answers) != 1 {
		t.Errorf("want one answer for each, got %v", answers)
	}
}

// What is read is what the netlink library reads in the namespace itself, lo's counters after some traffic.
func TestCountersAreThoseOfTheLink(t *testing.T) {
	testnode.Require(t, "root")
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for range 50 {
		_ = unix.Sendto(fd, []byte("frame"), 0, &unix.SockaddrInet4{Port: 9, Addr: [4]byte{127, 0, 0, 1}}) // refused by nobody who listens
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	want := lo.Attrs().Statistics
	err = open(t).Read([]links.Ref{{NSID: links.Here, Index: 1}}, func(_ int, l *links.Link, err error) {
		if err != nil {
			t.Fatal(err)
		}
		got := l.Stats
		if got.RxFrames != want.RxPackets || got.TxFrames != want.TxPackets || got.RxBytes != want.RxBytes || got.TxBytes != want.TxBytes || got.TxDropped != want.TxDropped || got.RxFrames < 50 {
			t.Errorf("want %+v, got %+v", want, got)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// receive waits until a change is as f wants it.
func receive(t *testing.T, l *links.Listener, f func(links.Change) bool) {
	t.Helper()
	watchdog := time.AfterFunc(patience, func() { _ = l.Close() })
	defer watchdog.Stop()
	for {
		list, err := l.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(list, f) {
			return
		}
	}
}

func TestALinkAndANamespaceAreHeardOf(t *testing.T) {
	testnode.Require(t, "root")
	l, c := listen(t, 1<<20), open(t)
	ns := testnode.NewNetns(t)
	id := nsid(t, c, ns)
	addVeth(t, ns, "v0")
	receive(t, l, func(c links.Change) bool {
		return c.Link != nil && !c.Deleted && c.Link.Ref == links.Ref{NSID: id, Index: 4711} && c.Link.Up
	})
	testnode.In(t, ns, func() {
		v, err := netlink.LinkByName("v0")
		if err != nil || netlink.LinkDel(v) != nil {
			t.Fatal("delete the veth", err)
		}
	})
	receive(t, l, func(c links.Change) bool {
		return c.Link != nil && c.Deleted && c.Link.Name == "v0" && c.Link.NSID == id
	})
	if err := errors.Join(unix.Unmount(ns, unix.MNT_DETACH), os.Remove(ns)); err != nil {
		t.Fatal(err)
	}
	receive(t, l, func(c links.Change) bool { return c.Link == nil && c.Gone == id })
}

// A buffer that is too small is told of, and whatever comes after that is heard: the socket takes nothing more in until it is emptied.
func TestAnOverrunIsTold(t *testing.T) {
	testnode.Require(t, "root")
	l, c := listen(t, 1), open(t)
	ns := testnode.NewNetns(t)
	nsid(t, c, ns)
	addVeth(t, ns, "v0")
	testnode.In(t, ns, func() {
		v, err := netlink.LinkByName("v0")
		if err != nil {
			t.Fatal(err)
		}
		for i := range 100 {
			if err := netlink.LinkSetMTU(v, 1000+i); err != nil {
				t.Fatal(err)
			}
		}
	})
	watchdog := time.AfterFunc(patience, func() { _ = l.Close() })
	defer watchdog.Stop()
	for {
		if _, err := l.Receive(); errors.Is(err, links.ErrOverrun) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	testnode.In(t, ns, func() {
		v, err := netlink.LinkByName("v0")
		if err != nil || netlink.LinkSetMTU(v, 900) != nil {
			t.Fatal("set an MTU", err)
		}
	})
	receive(t, l, func(c links.Change) bool { return c.Link != nil && c.Link.MTU == 900 })
}

func TestCloseEndsReceive(t *testing.T) {
	testnode.Require(t, "root")
	l := listen(t, 1<<20)
	done := make(chan error, 1)
	go func() {
		for {
			if _, err := l.Receive(); err != nil {
				done <- err
				return
			}
		}
	}()
	time.Sleep(10 * time.Millisecond)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("want %v, got %v", os.ErrClosed, err)
		}
	case <-time.After(patience):
		t.Error("receive does not end")
	}
}
