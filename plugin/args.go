package plugin

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/tapir-cni/tapir/internal/jsonkeys"
)

// Args are the CNI_ARGS that tapir understands. The TC_REDIRECT_TAP_ names are those that users of tc-redirect-tap
// pass already.
type Args struct {
	IP      string // requested addresses, separated by commas
	MAC     string
	TAP     *bool // opt-in for "when": "annotated"
	TapName string
	Queues  *int
	Owner   *int
	Group   *int
	Ignore  bool // IgnoreUnknown
	Guest   *GuestConfig

	PodName, PodNamespace string // K8S_POD_NAME, K8S_POD_NAMESPACE: to show them, and for sticky addresses

	unknowns []string
}

// argNames are the names of CNI_ARGS, for the nearest known one in an error.
var argNames = []string{
	"IgnoreUnknown", "IP", "MAC", "TAP", "TAP_NAME", "TAP_QUEUES", "TAP_OWNER", "TAP_GROUP",
	"TAP_GUEST_MAC", "TAP_GUEST_IP", "TAP_GUEST_GATEWAY", "TAP_GUEST_IP6", "TAP_GUEST_GATEWAY6",
	"TC_REDIRECT_TAP_NAME", "TC_REDIRECT_TAP_UID", "TC_REDIRECT_TAP_GID",
}

// argPath is the place that a fault of a CNI argument names.
func argPath(name string) string { return "CNI_ARGS." + name }

// parseArgs reads CNI_ARGS, "K=V;K=V" (CNI specification, section 2). Names that tapir does not know are a fault unless
// IgnoreUnknown is set; those of Kubernetes (K8S_…) are always let through.
func parseArgs(s string) (Args, faults) {
	var a Args
	var fs faults
	for pair := range strings.SplitSeq(s, ";") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		k, v, ok := strings.Cut(pair, "=")
		if !ok {
			fs.Add("CNI_ARGS", fmt.Sprintf("want NAME=VALUE, got %q", pair))
			continue
		}
		a.set(strings.TrimSpace(k), strings.TrimSpace(v), &fs)
	}
	if !a.Ignore {
		for _, k := range a.unknowns {
			fs.Add("CNI_ARGS", jsonkeys.Unknown(k, argNames))
		}
	}
	return a, fs
}

func (a *Args) set(k, v string, fs *faults) {
	switch k {
	case "IgnoreUnknown":
		if b := parseBool(k, v, fs); b != nil {
			a.Ignore = *b
		}
	case "IP":
		a.IP = v
	case "MAC":
		a.MAC = v
	case "TAP":
		a.TAP = parseBool(k, v, fs)
	case "TAP_NAME":
		a.TapName = v
	case "TC_REDIRECT_TAP_NAME":
		a.TapName = cmp.Or(a.TapName, v)
	case "TAP_QUEUES":
		a.Queues = parseNumber(k, v, fs)
	case "TAP_OWNER":
		a.Owner = parseNumber(k, v, fs)
	case "TC_REDIRECT_TAP_UID":
		a.Owner = cmp.Or(a.Owner, parseNumber(k, v, fs))
	case "K8S_POD_NAME":
		a.PodName = v
	case "K8S_POD_NAMESPACE":
		a.PodNamespace = v
	case "TAP_GROUP":
		a.Group = parseNumber(k, v, fs)
	case "TC_REDIRECT_TAP_GID":
		a.Group = cmp.Or(a.Group, parseNumber(k, v, fs))
	default:
		if key, ok := guestArgs[k]; ok {
			if a.Guest == nil {
				a.Guest = new(GuestConfig)
			}
			*a.Guest.field(key) = v
			return
		}
		if !strings.HasPrefix(k, "K8S_") && !slices.Contains(a.unknowns, k) {
			a.unknowns = append(a.unknowns, k)
		}
	}
}

func parseNumber(k, v string, fs *faults) *int {
	n, err := strconv.Atoi(v)
	if err != nil {
		fs.Add(argPath(k), fmt.Sprintf("want a number, got %q", v))
		return nil
	}
	return &n
}

func parseBool(k, v string, fs *faults) *bool {
	b, err := strconv.ParseBool(v)
	if err != nil {
		fs.Add(argPath(k), fmt.Sprintf("want true or false, got %q", v))
		return nil
	}
	return &b
}
