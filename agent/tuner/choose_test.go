package tuner

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/tap"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// The kinds of traffic, as the driver's counters show them.
var (
	silent = tap.Traffic{MTU: 1500}
	acks   = tap.Traffic{MTU: 1500, BytesPerFrame: 66, FramesPerSecond: 40e3}
	bulk   = tap.Traffic{MTU: 1500, BytesPerFrame: 1514, FramesPerSecond: 200e3}
	whole  = tap.Traffic{MTU: 1500, BytesPerFrame: 64e3, FramesPerSecond: 20e3}
)

// rig drives a chooser with a sample a second.
type rig struct {
	c  *chooser
	at time.Time
}

func newRig() *rig { return &rig{newChooser(Profile{}.whole().rules()), epoch} }

// until gives after how many samples of the traffic the rule is chosen; limit where it is not.
func (r *rig) until(t tap.Traffic, rule string, limit int) int {
	for i := range limit {
		r.at = r.at.Add(time.Second)
		r.c.step(r.at, t)
		if r.c.rule().Name == rule {
			return i + 1
		}
	}
	return limit
}

func TestAChangeIsFollowedWithinSeconds(t *testing.T) {
	r := newRig()
	for range 3 { // with phases of 20 s there are three changes a minute
		for _, phase := range []struct {
			traffic tap.Traffic
			rule    string
		}{{bulk, "full"}, {whole, "gso"}, {acks, "small"}} {
			if n := r.until(phase.traffic, phase.rule, 20); n > 3 {
				t.Errorf("%s: want it after at most 3 samples, got %d", phase.rule, n)
			}
			r.until(phase.traffic, "", 20)
		}
	}
}

func TestAPauseIsNoEnd(t *testing.T) {
	r := newRig()
	r.until(bulk, "full", 10)
	if r.until(silent, "quiet", 9); r.c.rule().Name != "full" {
		t.Errorf("want full after a pause, got %s", r.c.rule().Name)
	}
	r.until(bulk, "", 2)
	if n := r.until(silent, "quiet", 60); n < 10 || n > 15 {
		t.Errorf("want quiet after 10 s, got %d", n)
	}
}

// Traffic at a bound between two rules stays where it is; frames of the MTU's size are no neighbours of larger ones.
func TestMargins(t *testing.T) {
	for _, tt := range []struct {
		from, to tap.Traffic
		want     string
	}{
		{acks, tap.Traffic{MTU: 1500, BytesPerFrame: 780, FramesPerSecond: 50e3}, "small"},
		{acks, tap.Traffic{MTU: 1500, BytesPerFrame: 900, FramesPerSecond: 50e3}, "full"},
		{bulk, tap.Traffic{MTU: 1500, BytesPerFrame: 700, FramesPerSecond: 50e3}, "full"},
		{bulk, tap.Traffic{MTU: 1500, BytesPerFrame: 600, FramesPerSecond: 50e3}, "small"},
		{bulk, tap.Traffic{MTU: 1500, BytesPerFrame: 1600, FramesPerSecond: 50e3}, "full"},
		{bulk, tap.Traffic{MTU: 1500, BytesPerFrame: 1700, FramesPerSecond: 50e3}, "gso"},
		{whole, tap.Traffic{MTU: 1500, BytesPerFrame: 1514, FramesPerSecond: 50e3}, "full"},
		{silent, tap.Traffic{MTU: 1500, BytesPerFrame: 1514, FramesPerSecond: 1200}, "quiet"},
		{bulk, tap.Traffic{MTU: 1500, BytesPerFrame: 1514, FramesPerSecond: 900}, "full"},
	} {
		r := newRig()
		r.until(tt.from, "", 5)
		r.until(tt.to, "", 30)
		if got := r.c.rule().Name; got != tt.want {
			t.Errorf("%+v after %+v: want %s, got %s", tt.to, tt.from, tt.want, got)
		}
	}
}

// A guest that changes all the time is not followed all the time.
func TestItNeverFlaps(t *testing.T) {
	kinds := []tap.Traffic{silent, acks, bulk, whole}
	for seed := range uint64(50) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		input := make([]byte, 2000)
		for i := range input {
			input[i] = byte(rnd.Uint32())
		}
		period := 1 + int(seed%12)
		checkFlaps(t, func(i int) (time.Duration, tap.Traffic) { return time.Second, kinds[(i/period)%len(kinds)] }, 600)
		checkFlaps(t, func(i int) (time.Duration, tap.Traffic) { return time.Second, kinds[input[i]%4] }, 600)
	}
}

// checkFlaps drives a chooser with n samples: there are no more than maxChanges in any window, each is to another rule, and none is
// for less than two samples' worth of reason.
func checkFlaps(t *testing.T, sample func(i int) (time.Duration, tap.Traffic), n int) (changes int) {
	t.Helper()
	r := newRig()
	var times []time.Time
	last := r.c.current
	var seen []int
	for i := range n {
		after, traffic := sample(i)
		r.at = r.at.Add(after)
		seen = append(seen, r.c.choose(traffic))
		_, changed := r.c.step(r.at, traffic)
		if changed != (r.c.current != last) {
			t.Fatalf("sample %d: changed %t from rule %d to %d", i, changed, last, r.c.current)
		}
		if !changed {
			continue
		}
		if len(seen) < 2 || seen[i-1] != r.c.current || seen[i] != r.c.current {
			t.Fatalf("sample %d: a change to rule %d that two samples do not speak for", i, r.c.current)
		}
		last = r.c.current
		times = append(times, r.at)
		if k := len(times) - 1 - maxChanges; k >= 0 && r.at.Sub(times[k]) < window {
			t.Fatalf("want at most %d changes a minute, got them at %v", maxChanges, times[k:])
		}
	}
	return len(times)
}

// Whatever the samples say, and however far apart they are, it does not flap.
func FuzzChooserNeverFlaps(f *testing.F) {
	f.Add([]byte{0, 10, 0, 200, 5, 220, 1, 16, 5, 220, 255, 255})
	f.Fuzz(func(t *testing.T, data []byte) {
		n := len(data) / 6
		checkFlaps(t, func(i int) (time.Duration, tap.Traffic) {
			b := data[6*i:]
			return time.Duration(900+10*int(b[0])) * time.Millisecond, tap.Traffic{
				MTU: 68 + int(b[1])*257, FramesPerSecond: 10 * float64(binary.BigEndian.Uint16(b[2:])), BytesPerFrame: float64(binary.BigEndian.Uint16(b[4:])),
			}
		}, n)
	})
}

// A change may cost nothing and still tell something: the control to the tests above.
func TestSteadyTrafficIsChosenOnce(t *testing.T) {
	if n := checkFlaps(t, func(int) (time.Duration, tap.Traffic) { return time.Second, bulk }, 600); n != 1 {
		t.Errorf("want one change, got %d", n)
	}
}

// The table of the tuner says what that of package tap says.
func TestTheDefaultProfileIsTheTableOfPackageTap(t *testing.T) {
	rules := Profile{}.whole().rules()
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		tr := tap.Traffic{MTU: 68 + rnd.IntN(9000), BytesPerFrame: rnd.Float64() * 10000, FramesPerSecond: rnd.Float64() * 4000}
		want, got := tap.Choose(tr), tap.ChooseFrom(rules, tr)
		if got.Name != want.Name || device(got.Setting) != device(want.Setting) || got.Setting.Batch != want.Setting.Batch {
			t.Fatalf("%+v: want %+v, got %+v", tr, want, got)
		}
	}
}
