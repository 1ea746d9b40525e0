package xdp

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tapir-cni/tapir/internal/testnode"
)

// loopback is the ifindex of the device that BPF_PROG_TEST_RUN lends its frames.
const loopback = 1

// Verdicts of include/uapi/linux/pkt_cls.h.
const (
	verdictNext     = -1
	verdictDrop     = 2
	verdictRedirect = 7
)

// newPrograms loads programs that are pinned nowhere, for tests of the programs alone.
func newPrograms(t testing.TB) *Programs {
	t.Helper()
	testnode.Require(t, "root", "bpf")
	spec, err := loadRedirect()
	if err != nil {
		t.Fatal(err)
	}
	coll, err := ebpf.NewCollection(spec)
	if err != nil {
		t.Fatalf("load programs: %+v", err)
	}
	p := &Programs{
		digest:    Digest(),
		endpoints: coll.DetachMap(redirectMapEndpoints),
		counters:  coll.DetachMap(redirectMapCounters),
		programs:  make(map[Role]*ebpf.Program),
	}
	for role, name := range programNames {
		p.programs[role] = coll.DetachProgram(name)
	}
	coll.Close()
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// reserve makes ep the only endpoint of its ifindex, with counters at zero.
func reserve(t testing.TB, p *Programs, ifindex uint32, ep Endpoint) {
	t.Helper()
	if err := p.Delete(ifindex); err != nil {
		t.Fatal(err)
	}
	if err := p.Reserve(map[uint32]Endpoint{ifindex: ep}); err != nil {
		t.Fatal(err)
	}
}

// outcome is what a program did with one frame.
type outcome struct {
	verdict int
	reason  Reason // ReasonUnknown: it counted nothing
	out     []byte
}

// run gives one frame to the role's program and takes apart what it did. It fails the test where the frame was not
// counted exactly once, with all its bytes.
func run(t testing.TB, p *Programs, role Role, frame []byte) outcome {
	t.Helper()
	before := countersOf(t, p)
	opts := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+128)}
	ret, err := p.programs[role].Run(&opts)
	if err != nil {
		t.Fatalf("run %s program on %d bytes: %v", role, len(frame), err)
	}
	o := outcome{verdict: int(int32(ret)), out: opts.DataOut}
	counted := Counter{}
	for r, c := range countersOf(t, p) {
		if d := c.Frames - before[r].Frames; d > 0 {
			o.reason = r
			counted.Frames += d
			counted.Bytes += c.Bytes - before[r].Bytes
		}
	}
	if want := (Counter{1, uint64(len(frame))}); o.reason != ReasonUnknown && counted != want {
		t.Fatalf("counted %+v, want %+v", counted, want)
	}
	return o
}

func countersOf(t testing.TB, p *Programs) map[Reason]Counter {
	t.Helper()
	c, err := p.Counters(loopback)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// verdictOf is the verdict that each reason has in the role's program.
func verdictOf(role Role, r Reason) int {
	switch {
	case r.Dropped(), r == ReasonNDLinkLocal, r == ReasonInsideOnly:
		return verdictDrop
	case role == RoleHost && r == ReasonToHost, r == ReasonUnknown:
		return verdictNext
	}
	return verdictRedirect
}

// check runs a frame and compares. want.out nil stands for the frame as it came.
func check(t testing.TB, p *Programs, role Role, frame []byte, reason Reason, out []byte) {
	t.Helper()
	if out == nil {
		out = frame
	}
	got := run(t, p, role, frame)
	if got.reason != reason || got.verdict != verdictOf(role, reason) {
		t.Errorf("%s, verdict %d; want %s, verdict %d\nframe %x", got.reason, got.verdict, reason, verdictOf(role, reason), frame)
	}
	if !bytes.Equal(got.out, out) {
		t.Errorf("bytes out (%s):\ngot  %s\nwant %s", reason, dump(got.out), dump(out))
	}
}

// dump is a frame's length and its first bytes.
func dump(b []byte) string { return fmt.Sprintf("%d: % x", len(b), b[:min(len(b), 256)]) }

// runnable says whether this kernel test-runs such a frame: it refuses those shorter than an Ethernet header, and
// newer ones those that end in an IP header.
func runnable(p *Programs, frame []byte) bool {
	if len(frame) == 0 {
		return false
	}
	_, err := p.programs[RolePod].Run(&ebpf.RunOptions{Data: frame})
	return !errors.Is(err, unix.EINVAL)
}
