package plugin

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestIntervalsAreApartAndHalfOpen(t *testing.T) {
	var in []netip.Prefix
	for _, s := range []string{"10.0.0.0/8", "10.9.0.0/24", "192.0.2.7/32", "255.255.255.0/24", "fd00::/8", "ff00::/8", "10.0.0.0/8"} {
		in = append(in, netip.MustParsePrefix(s))
	}
	type edge struct {
		Addr string
		End  bool
	}
	for name, tc := range map[string]struct {
		ipv4 bool
		want []edge
	}{
		"IPv4": {true, []edge{{"10.0.0.0", false}, {"11.0.0.0", true}, {"192.0.2.7", false}, {"192.0.2.8", true}, {"255.255.255.0", false}}},
		"IPv6": {false, []edge{{"fd00::", false}, {"fe00::", true}, {"ff00::", false}}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []edge
			for _, e := range intervals(in, tc.ipv4) {
				a, _ := netip.AddrFromSlice(e.Key)
				got = append(got, edge{a.String(), e.IntervalEnd})
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestChainNameFollowsTheExceptions(t *testing.T) {
	a, b := netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("10.0.0.0/9")
	if masqChain("net", []netip.Prefix{a}) == masqChain("net", []netip.Prefix{b}) {
		t.Error("two lists of exceptions share a chain")
	}
	long := make([]byte, 300)
	for i := range long {
		long[i] = 'n'
	}
	const longest = 255 - len("pods4-") // NFT_NAME_MAXLEN less the NUL
	if name := masqChain(string(long), nil); len(name) > longest {
		t.Errorf("chain of a long network has %d bytes, want at most %d", len(name), longest)
	}
}
