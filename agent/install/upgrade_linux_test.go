package install_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/tap"
	"github.com/tapir-cni/tapir/test/bench/guest"
	"github.com/tapir-cni/tapir/xdp"
	"golang.org/x/sys/unix"
)

// otherVersion is that of the other build.
const otherVersion = "v0.0.0-other"

// build builds all commands as another version.
func build(t testing.TB) (dir string) {
	t.Helper()
	dir = t.TempDir()
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w -X github.com/tapir-cni/tapir/internal/version.version="+otherVersion, "-o", dir+"/",
		"github.com/tapir-cni/tapir/cmd/tapir", "github.com/tapir-cni/tapir/cmd/tapir-ipam", "github.com/tapir-cni/tapir/cmd/tapirctl", "github.com/tapir-cni/tapir/cmd/tapird")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the other version: %v: %s", err, out)
	}
	return dir
}

// Running pods notice neither an upgrade nor the way back: each frame is received or counted as dropped, as it is where nothing is replaced, and the
// state is what it was.
func TestUpgradeAndDowngradeKeepTrafficAndState(t *testing.T) {
	n := newNode(t, template, nil)
	builds := []struct{ dir, version string }{{n.from, ""}, {build(t), otherVersion}}
	tapirds := []string{command("tapird"), filepath.Join(builds[1].dir, "tapird")}
	d := n.startBuild(tapirds[0])
	d.ready()
	p := n.pod()
	mustDo(t, p.cni("ADD"))
	f := newFlow(t, p)
	before := f.record()

	steps := 4
	var took time.Duration
	f.resume()
	for i := 1; i <= steps; i++ {
		began := time.Now()
		b := builds[i%2]
		d.end([]unix.Signal{unix.SIGTERM, unix.SIGKILL}[i/2%2])
		n.install["from"] = b.dir
		d = n.startBuild(tapirds[i%2])
		d.ready()
		n.same(filepath.Join(n.bin, "tapir"), read(t, filepath.Join(b.dir, "tapir")))
		took += time.Since(began)
		mustDo(t, p.cni("CHECK")) // by this build, of what the other one made
		other := n.pod()
		mustDo(t, other.cni("ADD"))
		mustDo(t, other.cni("DEL"))
	}
	up, down := f.pause()
	if got := [2]int64{f.up.received.Load(), f.down.received.Load()}; got[0] <= up/2 || got[1] <= down/2 {
		t.Errorf("want most frames received, got %v of %d and %d; dropped: %v", got, up, down, f.dropped())
	}
	t.Logf("%d upgrades and downgrades, %s each: %d frames from the guest and %d to it, none lost uncounted; dropped: %v", steps, took/time.Duration(steps), up, down, f.dropped())

	// The control: as long without a replacement.
	f.resume()
	time.Sleep(took)
	up2, down2 := f.pause()
	t.Logf("control: %d and %d, dropped: %v", up2-up, down2-down, f.dropped())
	if diff := f.record(); !bytes.Equal(diff, before) {
		t.Errorf("the attachment's record: want %s, got %s", before, diff)
	}
	f.close()
	d.end(unix.SIGTERM)
	n.install["from"] = builds[1].dir
	d = n.startBuild(tapirds[1])
	d.ready()
	mustDo(t, p.cni("DEL")) // by the build that did not make it
	if out, err := exec.Command(filepath.Join(n.bin, "tapir"), "--version").CombinedOutput(); err != nil || !strings.Contains(string(out), otherVersion) {
		t.Errorf("want the other version installed, got %v: %s", err, out)
	}
}

// The balance of what is sent is not even where a queue is closed with frames in it, which nobody counts.
func TestAFrameThatNobodyCountsIsMissed(t *testing.T) {
	n := newNode(t, template, nil)
	d := n.start()
	d.ready()
	p := n.pod()
	mustDo(t, p.cni("ADD"))
	f := newFlow(t, p)
	f.resume()
	time.Sleep(20 * time.Millisecond)
	f.pause()
	f.down.sent.Add(1)
	if err := f.balance(); err == nil {
		t.Error("want one frame missed, got an even balance")
	}
	f.down.sent.Add(-1)
	mustDo(t, f.balance())
	f.close()
	mustDo(t, p.cni("DEL"))
}

// way is one direction of numbered frames.
type way struct {
	sent, received, twice atomic.Int64
	seen                  sync.Map
}

func (w *way) take(n uint32) {
	if _, had := w.seen.LoadOrStore(n, true); had {
		w.twice.Add(1)
		return
	}
	w.received.Add(1)
}

// flow is a stand-in for a VMM on the pod's TAP and a socket of the node, which send each other numbered datagrams.
type flow struct {
	t        testing.TB
	p        *pod
	rec      state.Attachment
	q        *tap.Queues
	socket   *net.UDPConn
	frame    []byte
	up, down way
	on       atomic.Bool
	gate     sync.RWMutex // read-held while a burst is sent
	stop     func()
	began    map[string]int64
}

const guestPort, hostPort = 4000, 9

func newFlow(t testing.TB, p *pod) *flow {
	t.Helper()
	f := &flow{t: t, p: p}
	f.record()
	var err error
	f.q, err = tap.OpenQueues(tap.QueueOptions{Netns: p.netns, Name: "tap-eth0", Count: 1, NAPI: true, VnetHdrSize: guest.HeaderSize})
	mustDo(t, err)
	f.socket, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(10, 9, 0, 1), Port: hostPort})
	mustDo(t, err)
	mustDo(t, f.socket.SetReadBuffer(1<<22))
	mac, err := net.ParseMAC(f.rec.GuestMAC)
	mustDo(t, err)
	f.frame = guest.UDP{FromMAC: mac, ToMAC: xdp.GatewayMAC, From: netip.AddrPortFrom(f.address(), guestPort), To: netip.AddrPortFrom(netip.MustParseAddr("10.9.0.1"), hostPort), Size: 100}.Frame()
	f.began = f.drops()
	var done atomic.Bool
	var parts sync.WaitGroup
	parts.Go(f.listen)
	parts.Go(func() { f.readGuest(&done) })
	parts.Go(func() { f.send(&done, f.sendUp) })
	parts.Go(func() { f.send(&done, f.sendDown) })
	f.stop = sync.OnceFunc(func() {
		done.Store(true)
		_ = f.socket.Close()
		parts.Wait()
		_ = f.q.Close()
	})
	t.Cleanup(f.stop)
	return f
}

func (f *flow) close() { f.stop() }

func (f *flow) address() netip.Addr { return f.rec.Addresses[0].Prefix.Addr() }

// record is the attachment's.
func (f *flow) record() []byte {
	f.t.Helper()
	mustDo(f.t, state.New(state.Config{}).View(f.t.Context(), func(tx *state.Tx) error {
		a, ok, err := tx.Attachment(state.Key{Network: "pods", ContainerID: f.p.id, IfName: "eth0"})
		if err == nil && !ok {
			err = errors.New("it is not recorded")
		}
		f.rec = a
		return err
	}))
	return fmt.Appendf(nil, "%+v", f.rec)
}

func (f *flow) listen() {
	buf := make([]byte, 2048)
	for {
		n, _, err := f.socket.ReadFromUDP(buf)
		if err != nil {
			return // closed
		}
		if n >= 4 {
			f.up.take(binary.BigEndian.Uint32(buf))
		}
	}
}

func (f *flow) readGuest(done *atomic.Bool) {
	buf := make([]byte, 1<<16)
	for !done.Load() {
		n, err := unix.Read(f.q.FDs()[0], buf)
		switch {
		case err == nil && guest.IsUDP(buf[:n], guestPort):
			f.down.take(guest.Sequence(buf[:n]))
		case errors.Is(err, unix.EAGAIN):
			poll := []unix.PollFd{{Fd: int32(f.q.FDs()[0]), Events: unix.POLLIN}}
			_, _ = unix.Poll(poll, 10) // a signal is as good as a timeout
		case err != nil:
			f.t.Errorf("read of the VMM: %v", err)
			return
		}
	}
}

// send sends some thousand a second.
func (f *flow) send(done *atomic.Bool, one func()) {
	for !done.Load() {
		f.gate.RLock()
		for range 5 {
			if f.on.Load() {
				one()
			}
		}
		f.gate.RUnlock()
		time.Sleep(2 * time.Millisecond)
	}
}

func (f *flow) sendUp() {
	guest.PutSequence(f.frame, uint32(f.up.sent.Load()))
	if _, err := unix.Write(f.q.FDs()[0], f.frame); err != nil {
		f.t.Errorf("write of the VMM: %v", err)
		return
	}
	f.up.sent.Add(1)
}

func (f *flow) sendDown() {
	data := binary.BigEndian.AppendUint32(make([]byte, 0, 64), uint32(f.down.sent.Load()))[:60]
	if _, err := f.socket.WriteToUDPAddrPort(data, netip.AddrPortFrom(f.address(), guestPort)); err != nil {
		f.t.Errorf("send of the node: %v", err)
		return
	}
	f.down.sent.Add(1)
}

func (f *flow) resume() { f.on.Store(true) }

// pause stops both senders, waits until the balance is even, and gives how many were sent.
func (f *flow) pause() (up, down int64) {
	f.t.Helper()
	f.on.Store(false)
	f.gate.Lock() // no burst is under way
	defer f.gate.Unlock()
	testnode.Eventually(f.t, patience, f.balance)
	return f.up.sent.Load(), f.down.sent.Load()
}

// balance is sent − received − counted drops, of both ways together, since the drops of a device are of none.
func (f *flow) balance() error {
	dropped := int64(0)
	for _, n := range f.dropped() {
		dropped += n
	}
	up, down := f.up.sent.Load()-f.up.received.Load(), f.down.sent.Load()-f.down.received.Load()
	if twice := f.up.twice.Load() + f.down.twice.Load(); up+down != dropped || twice != 0 {
		return fmt.Errorf("%d from the guest and %d to it were not received, %v were dropped, %d came twice", up, down, f.dropped(), twice)
	}
	return nil
}

// dropped are the drops since the beginning, by who counted them.
func (f *flow) dropped() map[string]int64 {
	all := map[string]int64{}
	for name, n := range f.drops() {
		if n != f.began[name] {
			all[name] = n - f.began[name]
		}
	}
	return all
}

func (f *flow) drops() map[string]int64 {
	f.t.Helper()
	all := map[string]int64{}
	testnode.In(f.t, f.p.netns, func() { deviceDrops(f.t, all, f.rec.TAP.Name, f.rec.Pod.Name) })
	deviceDrops(f.t, all, f.rec.Host.Name)
	programs, err := xdp.Open(xdp.DefaultDir)
	mustDo(f.t, err)
	defer programs.Close()
	counters, err := programs.Counters(uint32(f.rec.TAP.Index))
	mustDo(f.t, err)
	for reason, c := range counters {
		if reason.Dropped() {
			all["reason "+reason.String()] = int64(c.Frames)
		}
	}
	for line := range strings.Lines(string(read(f.t, "/proc/thread-self/net/udp"))) {
		if x := strings.Fields(line); len(x) > 12 && strings.HasSuffix(x[1], fmt.Sprintf(":%04X", hostPort)) {
			all["socket"] = number(f.t, x[len(x)-1])
		}
	}
	return all
}

// deviceDrops adds what devices of the calling thread's netns dropped, by /proc/net/dev.
func deviceDrops(t testing.TB, into map[string]int64, names ...string) {
	t.Helper()
	for line := range strings.Lines(string(read(t, "/proc/thread-self/net/dev"))) {
		x := strings.Fields(strings.ReplaceAll(line, ":", " "))
		for _, name := range names {
			if len(x) > 12 && x[0] == name {
				into[name+" rx"], into[name+" tx"] = number(t, x[4]), number(t, x[12])
			}
		}
	}
}

func number(t testing.TB, text string) (n int64) {
	t.Helper()
	_, err := fmt.Sscan(text, &n)
	mustDo(t, err)
	return n
}
