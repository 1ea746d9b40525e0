package plugin

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/tapir-cni/tapir/internal/jsonkeys"
	"github.com/tapir-cni/tapir/ipam"
	"github.com/tapir-cni/tapir/xdp"
)

// podPrefix starts the annotations by which a pod chooses. All that start so are tapir's: one that is not understood is refused.
const podPrefix = "tapir.dev/"

// The annotations, without [podPrefix]. That of the opt-in needs no leave: it has a meaning where "when" is "annotated", and says
// nothing elsewhere.
const (
	choiceTAP     = "tap"
	choiceQueues  = "queues"
	choiceMAC     = "mac"
	choiceIP      = "ip"
	choiceProfile = "profile"
	choiceXDP     = "xdp"
	choiceGuest   = "guest"
)

// choosable are the annotations that "podAnnotations" may name.
var choosable = []string{choiceTAP, choiceQueues, choiceMAC, choiceIP, choiceProfile, choiceXDP, choiceGuest}

// Bounds of what comes from a pod, in bytes: the length of a profile's name, and of a value that an error shows.
const (
	maxProfileName = 63
	maxShown       = 64
)

// choices is what a pod chose by its annotations. Zero values are nothing.
type choices struct {
	queues  *int
	mac     string
	ips     []string
	profile string // of the agent's tuner, whose configuration says whether the pod may have it
	xdp     xdp.Mode
	guest   *GuestConfig
}

// annotationPath is the place that a fault of an annotation names.
func annotationPath(name string) string { return "annotation " + podPrefix + name }

// validateChoosable checks the key "podAnnotations".
func (c *Config) validateChoosable(fs *faults) {
	for i, s := range c.PodAnnotations {
		if name := strings.TrimPrefix(s, podPrefix); !slices.Contains(choosable, name) {
			fs.Add(jsonkeys.IndexPath("podAnnotations", i), fmt.Sprintf("want one of %s, got %q", strings.Join(choosable, ", "), shown(s)))
		}
	}
}

// podChoices reads the pod's annotations: those that it may not have, that are not known and that are malformed are faults.
func (c *Config) podChoices(fs *faults) choices {
	allowed := map[string]bool{choiceTAP: true}
	for _, s := range c.PodAnnotations {
		allowed[strings.TrimPrefix(s, podPrefix)] = true
	}
	var ch choices
	all := c.RuntimeConfig.PodAnnotations
	for _, key := range slices.Sorted(maps.Keys(all)) {
		name, ours := strings.CutPrefix(key, podPrefix)
		switch {
		case !ours:
		case !slices.Contains(choosable, name):
			fs.Add(annotationPath(shown(name)), unknownChoice(name, allowed))
		case !allowed[name]:
			fs.Add(annotationPath(name), `the pod may not choose that here; `+mayChoose(allowed))
		default:
			ch.set(name, all[key], c, fs)
		}
	}
	return ch
}

func (ch *choices) set(name, value string, c *Config, fs *faults) {
	path := annotationPath(name)
	switch name {
	case choiceQueues:
		n, err := strconv.Atoi(value)
		if err != nil {
			fs.Add(path, fmt.Sprintf("want a number, got %q", shown(value)))
			return
		}
		checkQueues(fs, path, c.VMM, n)
		ch.queues = &n
	case choiceMAC:
		mac, err := parseMAC(value)
		if err != nil {
			fs.Add(path, err.Error())
		} else if bytes.Equal(mac, xdp.GatewayMAC) {
			fs.Add(path, fmt.Sprintf("want a MAC that is not the gateway's, got %q", value))
		}
		ch.mac = value
	case choiceIP:
		for s := range strings.SplitSeq(value, ",") {
			ip := strings.TrimSpace(s)
			if _, err := parseAddress(ip); err != nil {
				fs.Add(path, fmt.Sprintf("want an IP address or two with a comma between, got %q", shown(value)))
				return
			}
			ch.ips = append(ch.ips, ip)
		}
	case choiceProfile:
		if len(value) > maxProfileName {
			fs.Add(path, fmt.Sprintf("want at most %d bytes, got %d", maxProfileName, len(value)))
		}
		ch.profile = value
	case choiceXDP:
		modes := []string{string(xdp.ModeOff), string(xdp.ModeAuto), string(xdp.ModeNative), string(xdp.ModeGeneric)}
		if !slices.Contains(modes, value) {
			fs.Add(path, fmt.Sprintf("want one of %s, got %q", strings.Join(modes, ", "), shown(value)))
		}
		ch.xdp = xdp.Mode(value)
	case choiceGuest:
		ch.guest = parseGuestAnnotation(value, fs)
	}
}

// unknownChoice names the annotation that was probably meant.
func unknownChoice(name string, allowed map[string]bool) string {
	if near := jsonkeys.Nearest(name, choosable); near != "" && len(name) <= maxShown {
		return fmt.Sprintf("is not known; did you mean %q?", podPrefix+near)
	}
	return "is not known; " + mayChoose(allowed)
}

// mayChoose says what the pods of this network may choose.
func mayChoose(allowed map[string]bool) string {
	var names []string
	for _, name := range choosable {
		if allowed[name] {
			names = append(names, podPrefix+name)
		}
	}
	return fmt.Sprintf(`"podAnnotations" of the network's configuration allows %s`, strings.Join(names, ", "))
}

// shown is a value of a pod's as far as an error shows it.
func shown(s string) string {
	if len(s) > maxShown {
		return s[:maxShown] + "…"
	}
	return s
}

// planChoices holds what the pod chose against what it is: what would have no effect is refused.
func (p *Plan) planChoices(cfg *Config, ch choices, fs *faults) {
	p.Profile = ch.profile
	if p.Plain {
		why := `the pod has no TAP; it asks for one by ` + podPrefix + choiceTAP + `: "true"`
		if cfg.scannedByKata() {
			why = `"vmm": "kata" with placement "pod" gives no TAP: Kata makes its own`
		}
		for name, given := range map[string]bool{
			choiceQueues: ch.queues != nil && *ch.queues != 1, choiceProfile: ch.profile != "", choiceXDP: ch.xdp != "" && ch.xdp != xdp.ModeOff,
		} {
			if given {
				fs.Add(annotationPath(name), why)
			}
		}
		return
	}
	if ch.xdp == "" || ch.xdp == xdp.ModeOff {
		return
	}
	switch {
	case p.OnHost:
		fs.Add(annotationPath(choiceXDP), `want "off" with placement "host": what the guest sends is in the host's stack at once`)
	case p.Chained:
		fs.Add(annotationPath(choiceXDP), `want "off" after another plugin: the shortcut would go round its policies`)
	}
}

// planChosenIPs are the addresses that the pod chose, where the runtime names none. They are held against the ranges here, so that the
// fault names the annotation.
func (p *Plan) planChosenIPs(ch choices, fs *faults) {
	if len(ch.ips) == 0 || len(p.IPAM.Addresses) > 0 {
		return
	}
	if len(p.IPAM.Sets) == 0 {
		return // a fault of its own
	}
	if err := ipam.CheckRequested(p.IPAM.Sets, ch.ips); err != nil {
		fs.Add(annotationPath(choiceIP), err.Error())
	}
	p.IPAM.Addresses = ch.ips
}
