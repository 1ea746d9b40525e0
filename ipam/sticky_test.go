package ipam

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/tapir-cni/tapir/state"
)

// FuzzSticky plays pods that come and go on the store and on maps, and compares.
func FuzzSticky(f *testing.F) {
	f.Add([]byte{0, 0x80, 16, 0x90, 1, 0x81, 0}, false)
	f.Add([]byte("abcdefghijklmnopqrstuvwxyz\x80\x81\x82\x83abcdefgh"), true)
	r := rand.New(rand.NewPCG(7, 8))
	for _, rest := range []bool{false, true} {
		long := make([]byte, 1500)
		for i := range long {
			long[i] = byte(r.Uint32())
		}
		f.Add(long, rest)
	}
	f.Fuzz(func(t *testing.T, ops []byte, rest bool) {
		delay := "0s"
		if rest {
			delay = "1h" // never over in this test
		}
		s, faults := Config{Sticky: StickyPod, ReuseDelay: delay, Ranges: [][]Range{{{Subnet: "10.9.0.0/28"}}, {{Subnet: "fd00::/124"}, {Subnet: "fd01::/126"}}}}.Validate()
		if len(faults) > 0 || !s.Sticky {
			t.Fatal(faults, s.Sticky)
		}
		if err := storeIn(filepath.Join(t.TempDir(), "s")).Update(t.Context(), func(tx *state.Tx) error {
			return (&stickyModel{tx: tx, s: s, held: map[netip.Addr]bool{}, rests: map[netip.Addr]state.Pod{}, memory: map[state.Pod][]netip.Addr{}, leases: map[state.Key]stickyLease{}}).play(ops)
		}); err != nil {
			t.Fatal(err)
		}
	})
}

type stickyLease struct {
	pod       state.Pod
	addresses []netip.Addr
	broke     map[netip.Addr]state.Pod // rests that the lease cut short
}

// stickyModel is what should be, in maps.
type stickyModel struct {
	tx     *state.Tx
	s      Settings
	held   map[netip.Addr]bool
	rests  map[netip.Addr]state.Pod // since which pod's use
	memory map[state.Pod][]netip.Addr
	leases map[state.Key]stickyLease
}

// play makes each byte one call: bits 0 to 3 are the pod, 4 and 5 its container; the two highest bits 0 and 1 acquire, 2 releases, 3
// cancels. Pod 15 has no name.
func (m *stickyModel) play(ops []byte) error {
	for n, op := range ops {
		k := key(int(op & 0x3f))
		pod := state.Pod{Namespace: "default", Name: fmt.Sprintf("pod-%d", op&0xf)}
		if op&0xf == 0xf {
			pod = state.Pod{}
		}
		var err error
		switch op >> 6 {
		case 0, 1:
			err = m.acquire(k, pod)
		case 2:
			err = m.end(k, Release(m.tx, k), m.s.ReuseDelay > 0)
		default:
			err = m.end(k, Cancel(m.tx, k), false)
		}
		if err != nil {
			return fmt.Errorf("call %d (%#x): %w", n, op, err)
		}
	}
	return nil
}

func (m *stickyModel) end(k state.Key, err error, rest bool) error {
	l, ok := m.leases[k]
	if err != nil || !ok {
		return err
	}
	delete(m.leases, k)
	for _, a := range l.addresses {
		delete(m.held, a)
		if rest || len(l.broke) > 0 && m.s.ReuseDelay > 0 {
			m.rests[a] = l.pod
		}
	}
	if l.pod != (state.Pod{}) {
		m.memory[l.pod] = l.addresses
	}
	return nil
}

// mine is the address of the set that the pod must get; invalid where any will do.
func (m *stickyModel) mine(set RangeSet, pod state.Pod) netip.Addr {
	for _, a := range m.memory[pod] {
		since, resting := m.rests[a]
		if _, ok := set.find(a); ok && !m.held[a] && (!resting || since == pod) {
			return a
		}
	}
	return netip.Addr{}
}

func (m *stickyModel) full(set RangeSet) bool {
	used := map[netip.Addr]state.Key{}
	for a := range m.held {
		used[a] = state.Key{}
	}
	for a := range m.rests {
		used[a] = state.Key{}
	}
	return !anyFree(set, used)
}

func (m *stickyModel) acquire(k state.Key, pod state.Pod) error {
	var want []netip.Addr
	full := false
	for _, set := range m.s.Sets {
		a := m.mine(set, pod)
		want = append(want, a)
		full = full || !a.IsValid() && m.full(set)
	}
	got, err := Acquire(m.tx, Request{Key: k, Sets: m.s.Sets, ReuseDelay: m.s.ReuseDelay, Pod: pod})
	var exhausted *ExhaustedError
	switch _, exists := m.leases[k]; {
	case exists:
		if !errors.Is(err, ErrExists) {
			return fmt.Errorf("want ErrExists, got %v, %w", got, err)
		}
		return nil
	case full:
		if !errors.As(err, &exhausted) {
			return fmt.Errorf("a set is full: want an ExhaustedError, got %v, %w", got, err)
		}
		return nil
	case err != nil || len(got) != len(want):
		return fmt.Errorf("got %v, %w", got, err)
	}
	l := stickyLease{pod: pod, broke: map[netip.Addr]state.Pod{}}
	for i, g := range got {
		a := g.Prefix.Addr()
		since, resting := m.rests[a]
		switch {
		case want[i].IsValid() && a != want[i]:
			return fmt.Errorf("pod %q: want %s, which it had, got %s", pod.Name, want[i], a)
		case m.held[a]:
			return fmt.Errorf("%s is held", a)
		case resting && since != pod:
			return fmt.Errorf("%s rests since pod %q had it", a, since.Name)
		}
		if resting {
			l.broke[a] = since
			delete(m.rests, a)
		}
		m.held[a] = true
		l.addresses = append(l.addresses, a)
	}
	delete(m.memory, pod)
	m.leases[k] = l
	return nil
}

// One pod under changing container ids, through the binary alone.
func TestStickyAddressesOfTheBinary(t *testing.T) {
	p := newPlugin(t)
	p.ipam += `,"sticky":"pod","reuseDelay":"1h"`
	pod := func(name string) string {
		return "CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + name
	}
	first := p.ok("ADD", "c1", pod("web-0")).addresses()
	other := p.ok("ADD", "c2", pod("web-1")).addresses()
	p.ok("DEL", "c1", pod("web-0"))
	// The control: another pod does not get them, though nobody else has.
	if got := p.ok("ADD", "c3", pod("web-2")).addresses(); strings.Join(got, " ") == strings.Join(first, " ") {
		t.Errorf("another pod got %v", got)
	}
	if diff := cmp.Diff(first, p.ok("ADD", "c4", pod("web-0")).addresses()); diff != "" {
		t.Errorf("addresses of the pod that came back (-want +got):\n%s", diff)
	}
	p.ok("DEL", "c2") // without its names, as GC would
	if diff := cmp.Diff(other, p.ok("ADD", "c5", pod("web-1"), "CNI_IFNAME=eth0").addresses()); diff != "" {
		t.Errorf("addresses of the other one (-want +got):\n%s", diff)
	}
	p.ipam = strings.Replace(p.ipam, `"pod"`, `"node"`, 1)
	p.refused(7, []string{"ipam.sticky", `want "pod" or none, got "node"`}, "ADD", "c6")
}

// Addresses that are asked for go first, set by set, and a changed configuration is what counts.
func TestStickyBesideRequestsAndChanges(t *testing.T) {
	sets := func(subnets ...string) []RangeSet {
		var c Config
		for _, s := range subnets {
			c.Ranges = append(c.Ranges, []Range{{Subnet: s}})
		}
		s, faults := c.Validate()
		if len(faults) > 0 {
			t.Fatal(faults)
		}
		return s.Sets
	}
	both := sets("10.9.0.0/24", "fd00::/64")
	web := state.Pod{Namespace: "default", Name: "web-0"}
	id := 0
	err := newStore(t).Update(t.Context(), func(tx *state.Tx) error {
		once := func(what string, want []string, r Request) {
			t.Helper()
			id++
			r.Key, r.Pod, r.ReuseDelay = key(id), web, time.Hour
			l, err := Acquire(tx, r)
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			var got []string
			for _, a := range l {
				got = append(got, a.Prefix.Addr().String())
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", what, diff)
			}
			if err := Release(tx, r.Key); err != nil {
				t.Fatal(err)
			}
		}
		once("first", []string{"10.9.0.2", "fd00::2"}, Request{Sets: both})
		once("back", []string{"10.9.0.2", "fd00::2"}, Request{Sets: both})
		once("one asked for", []string{"10.9.0.9", "fd00::2"}, Request{Sets: both, Addresses: []string{"10.9.0.9"}})
		once("what was asked for is remembered", []string{"10.9.0.9", "fd00::2"}, Request{Sets: both})
		once("a new family", []string{"10.8.0.2", "fd00::2"}, Request{Sets: sets("10.8.0.0/24", "fd00::/64")})
		once("one family", []string{"10.8.0.2"}, Request{Sets: sets("10.8.0.0/24")})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
