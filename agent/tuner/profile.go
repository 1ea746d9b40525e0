package tuner

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"time"

	"github.com/tapir-cni/tapir/tap"
)

// The profiles that are there without a configuration. "default" may be replaced by one of that name, "off" not.
const (
	DefaultProfile = "default"
	OffProfile     = "off" // nothing is tuned, and what was is given back
)

// Duration is written as in "50us".
type Duration time.Duration

// UnmarshalText reads "50us".
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	*d = Duration(v)
	return err
}

// MarshalText writes "50µs".
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// Profile is how TAPs are tuned. The zero value is the default.
type Profile struct {
	Rules      []Rule `json:"rules"`      // tried in order, the last takes what is left; empty: those of package tap
	Ring       Ring   `json:"ring"`       // towards the guest
	RPS        string `json:"rps"`        // CPUs that take the guest's frames: "keep" (or empty), "off", "near", or a list as "0-3,8"
	XPS        string `json:"xps"`        // of transmit queues, likewise
	ThreadCPUs string `json:"threadCPUs"` // where NAPI threads may run: "near" (or empty), "any", or a list
}

// Rule is a [tap.Rule] as the configuration has it.
type Rule struct {
	Name            string   `json:"name"`
	Why             string   `json:"why"`
	FramesBelow     float64  `json:"framesBelow"` // a second; 0: any
	SizeBelow       float64  `json:"sizeBelow"`   // mean frame in MTUs; 0: any
	Threaded        bool     `json:"threaded"`
	Batch           bool     `json:"batch"`
	GROFlushTimeout Duration `json:"groFlushTimeout"`
	DeferHardIRQs   int      `json:"deferHardIRQs"`
}

// Ring is how far the ring may grow, and when that is given back.
type Ring struct {
	Max      int      `json:"max"`      // frames; 0: 4096; 1: never grown
	GiveBack Duration `json:"giveBack"` // after so long without a drop; 0: 5m
}

// The words of masks.
const (
	keepCPUs = "keep"
	noCPUs   = "off"
	nearCPUs = "near"
	anyCPUs  = "any"
)

// Bounds of what a configuration may say.
const (
	defaultRing     = 4096
	maxRing         = 1 << 16
	defaultGiveBack = 5 * time.Minute
	maxTimeout      = 10 * time.Millisecond
	maxDefer        = 1000
)

var profileName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// whole fills in what the profile leaves to the defaults.
func (p Profile) whole() Profile {
	if len(p.Rules) == 0 {
		for _, r := range tap.Rules() {
			s := r.Setting
			p.Rules = append(p.Rules, Rule{r.Name, r.Why, r.FramesBelow, r.SizeBelow, s.Threaded, s.Batch, Duration(s.GROFlushTimeout), s.DeferHardIRQs})
		}
	}
	if p.Ring.Max == 0 {
		p.Ring.Max = defaultRing
	}
	if p.Ring.GiveBack == 0 {
		p.Ring.GiveBack = Duration(defaultGiveBack)
	}
	for to, word := range map[*string]string{&p.RPS: keepCPUs, &p.XPS: keepCPUs, &p.ThreadCPUs: nearCPUs} {
		if *to == "" {
			*to = word
		}
	}
	return p
}

// rules are those of the profile, which is whole, as package tap has them. NAPI is the queue's own business here.
func (p Profile) rules() []tap.Rule {
	list := make([]tap.Rule, 0, len(p.Rules))
	for _, r := range p.Rules {
		list = append(list, tap.Rule{Name: r.Name, Why: r.Why, FramesBelow: r.FramesBelow, SizeBelow: r.SizeBelow, Setting: tap.Setting{
			NAPI: true, Threaded: r.Threaded, Batch: r.Batch, GROFlushTimeout: time.Duration(r.GROFlushTimeout), DeferHardIRQs: r.DeferHardIRQs,
		}})
	}
	return list
}

// Profiles are those by name.
type Profiles map[string]Profile

// get gives a profile that is whole; ok is false where there is none of that name.
func (p Profiles) get(name string) (Profile, bool) {
	one, ok := p[name]
	return one.whole(), ok || name == DefaultProfile
}

// Names are all that there are, sorted, with those that need no configuration.
func (p Profiles) Names() []string {
	names := append(slices.Collect(maps.Keys(p)), DefaultProfile, OffProfile)
	slices.Sort(names)
	return slices.Compact(names)
}

// Validate calls add for each fault, with the path of its key.
func (p Profiles) Validate(path string, add func(key, fault string)) {
	for _, name := range slices.Sorted(maps.Keys(p)) {
		at := path + "." + name
		switch {
		case name == OffProfile:
			add(at, "want another name: this one tunes nothing, always")
		case !profileName.MatchString(name):
			add(at, "want a name of at most 63 lower-case letters, digits and dashes")
		}
		p[name].validate(at, add)
	}
}

func (p Profile) validate(at string, add func(key, fault string)) {
	seen := map[string]bool{}
	for i, r := range p.Rules {
		key := fmt.Sprintf("%s.rules[%d]", at, i)
		if r.Name == "" || seen[r.Name] {
			add(key+".name", fmt.Sprintf("want a name of its own, got %q", r.Name))
		}
		seen[r.Name] = true
		r.validate(key, i == len(p.Rules)-1, add)
	}
	if p.Ring.Max < 0 || p.Ring.Max > maxRing {
		add(at+".ring.max", fmt.Sprintf("want 0 to %d frames, got %d", maxRing, p.Ring.Max))
	}
	if d := time.Duration(p.Ring.GiveBack); d != 0 && d < time.Second {
		add(at+".ring.giveBack", fmt.Sprintf("want at least 1s, got %s", d))
	}
	for key, v := range map[string]struct {
		value string
		words []string
	}{"rps": {p.RPS, []string{"", keepCPUs, noCPUs, nearCPUs}}, "xps": {p.XPS, []string{"", keepCPUs, noCPUs, nearCPUs}}, "threadCPUs": {p.ThreadCPUs, []string{"", nearCPUs, anyCPUs}}} {
		if slices.Contains(v.words, v.value) {
			continue
		}
		if _, err := parseCPUs(v.value); err != nil {
			add(at+"."+key, fmt.Sprintf("want one of %q, or a list of CPUs: %v", v.words[1:], err))
		}
	}
}

func (r Rule) validate(key string, last bool, add func(key, fault string)) {
	if r.FramesBelow < 0 || r.SizeBelow < 0 {
		add(key, "want framesBelow and sizeBelow of 0 or more")
	}
	if last && (r.FramesBelow != 0 || r.SizeBelow != 0) {
		add(key, "the last rule takes all that is left: want neither framesBelow nor sizeBelow")
	}
	if r.Batch && !r.Threaded {
		add(key+".batch", "want it with threaded: it is a policy of the threads")
	}
	if d := time.Duration(r.GROFlushTimeout); d < 0 || d > maxTimeout {
		add(key+".groFlushTimeout", fmt.Sprintf("want 0 to %s, got %s", maxTimeout, d))
	}
	if r.DeferHardIRQs < 0 || r.DeferHardIRQs > maxDefer {
		add(key+".deferHardIRQs", fmt.Sprintf("want 0 to %d, got %d", maxDefer, r.DeferHardIRQs))
	}
	if (r.GROFlushTimeout > 0) != (r.DeferHardIRQs > 0) {
		add(key, "want groFlushTimeout and deferHardIRQs together: the kernel waits only where both are set")
	}
}

// pick is the profile for an attachment that asks for one: what it asks for where that is allowed and there is such a profile, else fallback;
// why says what was wrong with it.
func (p Profiles) pick(asked, fallback string, allowed []string) (name, why string) {
	switch _, known := p.get(asked); {
	case asked == "":
		return fallback, ""
	case !slices.Contains(allowed, asked):
		return fallback, fmt.Sprintf("the pod asks for profile %.63q, which pods may not have; allowed are %q", asked, allowed)
	case !known && asked != OffProfile:
		return fallback, fmt.Sprintf("the pod asks for profile %q, which there is not", asked)
	}
	return asked, ""
}
