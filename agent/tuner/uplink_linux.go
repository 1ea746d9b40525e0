package tuner

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/safchain/ethtool"
	"github.com/tapir-cni/tapir/agent/journal"
	"golang.org/x/sys/unix"
)

// Uplink is what a device of the node is to have while tapird runs; what is not named stays as it is. Most drivers stop their queues for a
// moment when channels or rings change.
type Uplink struct {
	Combined   *int   `json:"combined"` // channels that receive and transmit
	RxChannels *int   `json:"rxChannels"`
	TxChannels *int   `json:"txChannels"`
	RxRing     *int   `json:"rxRing"` // frames a queue
	TxRing     *int   `json:"txRing"`
	RxUsecs    *int   `json:"rxUsecs"`  // that an interrupt may be late, µs
	RxFrames   *int   `json:"rxFrames"` // that an interrupt may wait for
	TxUsecs    *int   `json:"txUsecs"`
	TxFrames   *int   `json:"txFrames"`
	AdaptiveRx *int   `json:"adaptiveRx"` // 0 or 1: the driver chooses rxUsecs and rxFrames
	AdaptiveTx *int   `json:"adaptiveTx"`
	IRQs       string `json:"irqs"` // CPUs of its interrupts: "keep" (or empty), "near" (to the device), or a list; one CPU an interrupt, in turn
}

// uplinkObject is how the journal's names of uplinks begin.
const uplinkObject = "uplink/"

// irqSetting is how the settings of interrupts begin; the interrupt's number follows.
const irqSetting = "irq/"

// A knob is one number that ethtool knows of a device.
type knob struct {
	name  string
	asked func(Uplink) *int
	// one of
	channels func(*ethtool.Channels) *uint32
	ring     func(*ethtool.Ring) *uint32
	coalesce func(*ethtool.Coalesce) *uint32
}

// knobs are in the order in which they are set: channels first, since they make queues anew.
var knobs = []knob{
	{name: "channels/combined", asked: func(u Uplink) *int { return u.Combined }, channels: func(c *ethtool.Channels) *uint32 { return &c.CombinedCount }},
	{name: "channels/rx", asked: func(u Uplink) *int { return u.RxChannels }, channels: func(c *ethtool.Channels) *uint32 { return &c.RxCount }},
	{name: "channels/tx", asked: func(u Uplink) *int { return u.TxChannels }, channels: func(c *ethtool.Channels) *uint32 { return &c.TxCount }},
	{name: "rings/rx", asked: func(u Uplink) *int { return u.RxRing }, ring: func(r *ethtool.Ring) *uint32 { return &r.RxPending }},
	{name: "rings/tx", asked: func(u Uplink) *int { return u.TxRing }, ring: func(r *ethtool.Ring) *uint32 { return &r.TxPending }},
	{name: "coalesce/adaptive-rx", asked: func(u Uplink) *int { return u.AdaptiveRx }, coalesce: func(c *ethtool.Coalesce) *uint32 { return &c.UseAdaptiveRxCoalesce }},
	{name: "coalesce/adaptive-tx", asked: func(u Uplink) *int { return u.AdaptiveTx }, coalesce: func(c *ethtool.Coalesce) *uint32 { return &c.UseAdaptiveTxCoalesce }},
	{name: "coalesce/rx-usecs", asked: func(u Uplink) *int { return u.RxUsecs }, coalesce: func(c *ethtool.Coalesce) *uint32 { return &c.RxCoalesceUsecs }},
	{name: "coalesce/rx-frames", asked: func(u Uplink) *int { return u.RxFrames }, coalesce: func(c *ethtool.Coalesce) *uint32 { return &c.RxMaxCoalescedFrames }},
	{name: "coalesce/tx-usecs", asked: func(u Uplink) *int { return u.TxUsecs }, coalesce: func(c *ethtool.Coalesce) *uint32 { return &c.TxCoalesceUsecs }},
	{name: "coalesce/tx-frames", asked: func(u Uplink) *int { return u.TxFrames }, coalesce: func(c *ethtool.Coalesce) *uint32 { return &c.TxMaxCoalescedFrames }},
}

// Validate calls add for each fault.
func (u Uplink) Validate(at string, add func(key, fault string)) {
	for _, k := range knobs {
		least, most := 0, 1<<20
		if k.channels != nil || k.ring != nil {
			least = 1
		}
		if strings.HasPrefix(k.name, "coalesce/adaptive") {
			most = 1
		}
		if v := k.asked(u); v != nil && (*v < least || *v > most) {
			add(at, fmt.Sprintf("%s: want %d to %d, got %d", k.name, least, most, *v))
		}
	}
	if u.IRQs != keepCPUs && u.IRQs != nearCPUs {
		if _, err := parseCPUs(u.IRQs); err != nil {
			add(at+".irqs", fmt.Sprintf("want %q, %q, or a list of CPUs: %v", keepCPUs, nearCPUs, err))
		}
	}
}

// use reads the knob of a device, and where value is not nil sets it. EOPNOTSUPP: the device has no such.
func (k knob) use(device string, value *int) (before int, err error) {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return 0, err
	}
	defer e.Close()
	var at *uint32
	var set func() error
	switch {
	case k.channels != nil:
		var c ethtool.Channels
		c, err = e.GetChannels(device)
		at, set = k.channels(&c), func() error { return second(e.SetChannels(device, c)) }
	case k.ring != nil:
		var r ethtool.Ring
		r, err = e.GetRing(device)
		at, set = k.ring(&r), func() error { return second(e.SetRing(device, r)) }
	default:
		var c ethtool.Coalesce
		c, err = e.GetCoalesce(device)
		at, set = k.coalesce(&c), func() error { return second(e.SetCoalesce(device, c)) }
	}
	if before = int(*at); err != nil || value == nil || before == *value {
		return before, err
	}
	*at = uint32(*value)
	return before, set()
}

func second[T any](_ T, err error) error { return err }

// tuneUplinks gives back what is not asked for any more, and sets what is.
func (t *Tuner) tuneUplinks() {
	asked := map[string]Uplink{}
	if t.now.Mode != Off {
		asked = t.now.Uplinks
	}
	kept := map[string]bool{} // object and setting
	var steps []step
	for _, name := range slices.Sorted(maps.Keys(asked)) {
		device, err := net.InterfaceByName(name)
		if err != nil {
			t.conclude(step{Decision: Decision{Time: time.Now(), Device: name, Kind: KindUplink, Why: "the configuration asks for it"}}, err, false)
			continue
		}
		s, settings := t.uplink(device, asked[name])
		for _, setting := range settings {
			kept[uplinkObject+name+" "+setting] = true
		}
		if len(s.changes) > 0 {
			steps = append(steps, s)
		}
	}
	t.restoreUplinks(func(setting string) bool { return kept[setting] }, "nobody asks for it any more")
	t.carryOut(steps, time.Now())
	t.journal = nil
}

// uplink is what to change of one device; settings are all that the configuration asks for.
func (t *Tuner) uplink(device *net.Interface, u Uplink) (s step, settings []string) {
	s.Decision = Decision{Device: device.Name, Kind: KindUplink, Why: "the configuration asks for it"}
	entry := func(setting, before, after string) journal.Change {
		return journal.Change{Part: Part, Object: uplinkObject + device.Name, Index: device.Index, Setting: setting, Before: before, After: after, Why: s.Why}
	}
	for _, k := range knobs {
		want := k.asked(u)
		if want == nil {
			continue
		}
		settings = append(settings, k.name)
		before, err := k.use(device.Name, nil)
		switch {
		case err != nil:
			s.changes = append(s.changes, change{Change: entry(k.name, "", strconv.Itoa(*want)), moot: true, write: func() error { return unsupported(k.name, err) }})
		case before != *want:
			s.changes = append(s.changes, change{Change: entry(k.name, strconv.Itoa(before), strconv.Itoa(*want)), write: func() error {
				_, err := k.use(device.Name, want)
				return unsupported(k.name, err)
			}})
		}
	}
	for irq, c := range t.irqs(device.Name, u.IRQs) {
		setting := irqSetting + irq
		settings = append(settings, setting)
		file := filepath.Join(t.irqDir, irq, "smp_affinity_list")
		have, err := os.ReadFile(file)
		if before := strings.TrimSpace(string(have)); err == nil && before != c {
			s.changes = append(s.changes, change{Change: entry(setting, before, c), write: func() error { return writeIRQ(file, c) }})
		}
	}
	return s, settings
}

// unsupported says it in words where a device has no such setting.
func unsupported(what string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%s: the device does not support it", what)
	}
	return fmt.Errorf("%s: %w", what, err)
}

func writeIRQ(file, list string) error {
	if err := os.WriteFile(file, []byte(list), 0); err != nil && !errors.Is(err, fs.ErrNotExist) { // gone with its queue
		return fmt.Errorf("keep an interrupt on CPU %s: %w", list, err)
	}
	return nil
}

// irqs are the interrupts of a device and the CPU that each is to have.
func (t *Tuner) irqs(device, word string) map[string]string {
	if word == "" || word == keepCPUs {
		return nil
	}
	on, err := parseCPUs(word)
	if word == nearCPUs {
		if on, err = t.topology.nodes[deviceNode(t.c.Sys, device)], nil; len(on) == 0 {
			on = t.topology.online
		}
	}
	files, readErr := fs.ReadDir(t.c.Sys, "class/net/"+device+"/device/msi_irqs")
	if err != nil || readErr != nil || len(on) == 0 {
		return nil // a device without hardware has none
	}
	var numbers []int
	for _, f := range files {
		if n, err := strconv.Atoi(f.Name()); err == nil {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	all := map[string]string{}
	for i, n := range numbers {
		all[strconv.Itoa(n)] = strconv.Itoa(on[i%len(on)])
	}
	return all
}

// restoreUplinks gives back what the journal has of uplinks, but for "object setting" that keep names.
func (t *Tuner) restoreUplinks(keep func(setting string) bool, why string) {
	t.journal = nil
	var steps []step
	var gone []journal.Change
	for _, object := range slices.Sorted(maps.Keys(t.journaled())) {
		name, ok := strings.CutPrefix(object, uplinkObject)
		if !ok {
			continue
		}
		s := step{Decision: Decision{Device: name, Kind: KindGiveBack, Why: why}}
		device, err := net.InterfaceByName(name)
		for _, c := range t.journaled()[object] {
			switch {
			case err != nil || device.Index != c.Index:
				gone = append(gone, c)
			case !keep(object + " " + c.Setting):
				back := change{Change: c, forget: true, write: func() error { return t.restoreUplink(name, c) }}
				back.Before, back.After = c.After, c.Before
				s.changes = append(s.changes, back)
			}
		}
		if len(s.changes) > 0 {
			steps = append(steps, s)
		}
	}
	if len(gone) > 0 {
		if err := t.c.Journal.Forget(gone...); err != nil {
			t.c.Logger.Warn("the journal keeps what is gone", "error", err)
		}
	}
	t.carryOut(steps, time.Now())
	t.journal = nil
}

func (t *Tuner) restoreUplink(name string, c journal.Change) error {
	if irq, ok := strings.CutPrefix(c.Setting, irqSetting); ok {
		return writeIRQ(filepath.Join(t.irqDir, irq, "smp_affinity_list"), c.Before)
	}
	i := slices.IndexFunc(knobs, func(k knob) bool { return k.name == c.Setting })
	before, err := strconv.Atoi(c.Before)
	if i < 0 || err != nil {
		return nil // of another version of tapird
	}
	_, err = knobs[i].use(name, &before)
	return unsupported(c.Setting, err)
}
