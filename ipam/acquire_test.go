package ipam

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tapir-cni/tapir/state"
)

var compare = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})

func wantExhausted(t *testing.T, err error) *ExhaustedError {
	t.Helper()
	var e *ExhaustedError
	if !errors.As(err, &e) {
		t.Fatalf("want an ExhaustedError, got %v", err)
	}
	if code, ok := ErrorCode(err); code != 100 || !ok {
		t.Errorf("CNI code of %v: want 100, got %d", err, code)
	}
	return e
}

func acquire(t *testing.T, tx *state.Tx, req Request) []netip.Addr {
	t.Helper()
	leases, err := Acquire(tx, req)
	if err != nil {
		t.Fatalf("Acquire for %q: %v", req.Key, err)
	}
	return addrs(leases)
}

func ips(list ...string) (out []netip.Addr) {
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func TestOneAddressOfEachSetIPv4First(t *testing.T) {
	s := settings(t, ranges("fd00::/64", "10.9.0.0/24", "10.8.0.0/24"))
	update(t, newStore(t), func(tx *state.Tx) error {
		got, err := Acquire(tx, Request{Key: key(1), Sets: s.Sets})
		want := []Lease{
			{Prefix: netip.MustParsePrefix("10.9.0.2/24"), Gateway: netip.MustParseAddr("10.9.0.1")},
			{Prefix: netip.MustParsePrefix("10.8.0.2/24"), Gateway: netip.MustParseAddr("10.8.0.1")},
			{Prefix: netip.MustParsePrefix("fd00::2/64"), Gateway: netip.MustParseAddr("fd00::1")},
		}
		if diff := cmp.Diff(want, got, compare); diff != "" || err != nil {
			t.Errorf("leases, %v (-want +got):\n%s", err, diff)
		}
		return nil
	})
}

func TestRoundRobinAndRest(t *testing.T) {
	s := settings(t, ranges("10.9.0.0/29")) // .2 to .6
	update(t, newStore(t), func(tx *state.Tx) error {
		req := func(i int) Request { return Request{Key: key(i), Sets: s.Sets, ReuseDelay: time.Hour} }
		acquire(t, tx, req(1))
		acquire(t, tx, req(2))
		if err := Release(tx, key(1)); err != nil {
			return err
		}
		// Not the one just released, but the next; and round the end, past what rests and what is held.
		for i, want := range []string{"10.9.0.4", "10.9.0.5", "10.9.0.6"} {
			if got := acquire(t, tx, req(3+i)); !cmp.Equal(got, ips(want), compare) {
				t.Errorf("attachment %d: want %s, got %v", 3+i, want, got)
			}
		}
		_, err := Acquire(tx, req(6))
		e := wantExhausted(t, err)
		if e.Leased != 4 || e.Resting != 1 || e.Reserved != 3 || e.FirstFree < 59*time.Minute {
			t.Errorf("exhausted: got %+v", e)
		}
		want := `no free address in 10.9.0.0/29: 4 leased, 3 reserved, 1 resting (the first is free in 1h0m0s); "tapirctl gc" frees those of dead pods`
		if err.Error() != want {
			t.Errorf("error: want %q, got %q", want, err)
		}
		if _, leased, err := tx.Lease(key(6)); leased || err != nil {
			t.Errorf("the refused attachment has a lease: %v, %v", leased, err)
		}
		return nil
	})
}

func TestAddressThatNeedNotRestIsUsedAgainLast(t *testing.T) {
	s := settings(t, ranges("10.9.0.0/29"))
	update(t, newStore(t), func(tx *state.Tx) error {
		var got []netip.Addr
		for i := range 7 {
			got = append(got, acquire(t, tx, Request{Key: key(i), Sets: s.Sets})...)
			if err := Release(tx, key(i)); err != nil {
				return err
			}
		}
		want := ips("10.9.0.2", "10.9.0.3", "10.9.0.4", "10.9.0.5", "10.9.0.6", "10.9.0.2", "10.9.0.3")
		if diff := cmp.Diff(want, got, compare); diff != "" {
			t.Errorf("addresses (-want +got):\n%s", diff)
		}
		return nil
	})
}

// More rest than one call frees, and those of another set before them in the queue.
func TestRestedAddressesAreFoundBehindOthers(t *testing.T) {
	small, big := settings(t, ranges("10.9.0.0/30")), settings(t, ranges("10.8.0.0/20"))
	update(t, newStore(t), func(tx *state.Tx) error {
		const others = 2000
		for i := range others {
			acquire(t, tx, Request{Key: key(i), Sets: big.Sets, ReuseDelay: time.Nanosecond})
		}
		acquire(t, tx, Request{Key: key(others), Sets: small.Sets, ReuseDelay: time.Nanosecond})
		for i := range others + 1 {
			if err := Release(tx, key(i)); err != nil {
				return err
			}
		}
		if got := acquire(t, tx, Request{Key: key(9999), Sets: small.Sets}); !cmp.Equal(got, ips("10.9.0.2"), compare) {
			t.Errorf("the only address: got %v", got)
		}
		return nil
	})
}

func TestAllSetsOrNone(t *testing.T) {
	s := settings(t, ranges("10.9.0.0/24", "fd00::/127")) // one IPv6 address beside the gateway
	store := newStore(t)
	update(t, store, func(tx *state.Tx) error {
		acquire(t, tx, Request{Key: key(1), Sets: s.Sets})
		_, err := Acquire(tx, Request{Key: key(2), Sets: s.Sets})
		_ = wantExhausted(t, err)
		return nil // committed: what a refused Acquire did would stay
	})
	update(t, store, func(tx *state.Tx) error {
		if err := Release(tx, key(1)); err != nil {
			return err
		}
		// The IPv4 address after the first: the refused call took none.
		if got := acquire(t, tx, Request{Key: key(3), Sets: s.Sets}); !cmp.Equal(got, ips("10.9.0.3", "fd00::1"), compare) {
			t.Errorf("after the refused one: got %v", got)
		}
		return nil
	})
}

func TestSecondLeaseOfAnAttachmentIsRefused(t *testing.T) {
	s := settings(t, ranges("10.9.0.0/24"))
	update(t, newStore(t), func(tx *state.Tx) error {
		first := acquire(t, tx, Request{Key: key(1), Sets: s.Sets})
		_, err := Acquire(tx, Request{Key: key(1), Sets: s.Sets})
		if !errors.Is(err, ErrExists) || !strings.Contains(err.Error(), first[0].String()) {
			t.Errorf("second: want ErrExists that names %v, got %v", first, err)
		}
		l, ok, err := tx.Lease(key(1))
		if !ok || err != nil || !cmp.Equal(addrs(l.Addresses), first, compare) {
			t.Errorf("the first lease: want %v, got %v, %v, %v", first, l, ok, err)
		}
		return nil
	})
}

func TestRequestedAddresses(t *testing.T) {
	s := settings(t, Config{Ranges: [][]Range{
		{{Subnet: "10.9.0.0/24", RangeEnd: "10.9.0.99", Exclude: []string{"10.9.0.50"}}}, {{Subnet: "fd00::/64"}},
	}})
	for name, c := range map[string]struct {
		ask   []string
		want  []string
		fault string // part of a RequestError
	}{
		"none":                      {nil, []string{"10.9.0.3", "fd00::3"}, ""},
		"one set":                   {[]string{"10.9.0.77"}, []string{"10.9.0.77", "fd00::3"}, ""},
		"both sets":                 {[]string{"fd00::77", "10.9.0.77"}, []string{"10.9.0.77", "fd00::77"}, ""},
		"with prefix length":        {[]string{"10.9.0.77/24", "fd00::77/128"}, []string{"10.9.0.77", "fd00::77"}, ""},
		"the same twice":            {[]string{"10.9.0.77", "10.9.0.77/24"}, []string{"10.9.0.77", "fd00::3"}, ""},
		"two of a set":              {[]string{"10.9.0.77", "10.9.0.78"}, nil, "want one address of 10.9.0.1-10.9.0.99"},
		"wrong prefix length":       {[]string{"10.9.0.77/16"}, nil, "want prefix length 24"},
		"gateway":                   {[]string{"10.9.0.1"}, nil, "gateway"},
		"excluded":                  {[]string{"10.9.0.50"}, nil, "excluded"},
		"network":                   {[]string{"10.9.0.0"}, nil, "10.9.0.1-10.9.0.99; fd00::/64"},
		"outside the range":         {[]string{"10.9.0.100"}, nil, "10.9.0.1-10.9.0.99; fd00::/64"},
		"outside the subnet":        {[]string{"10.7.0.1"}, nil, "10.9.0.1-10.9.0.99; fd00::/64"},
		"no address":                {[]string{"dhcp"}, nil, "want an IPv4 or IPv6 address"},
		"mapped":                    {[]string{"::ffff:10.9.0.77"}, nil, "want an IPv4 or IPv6 address"},
		"with a zone":               {[]string{"fd00::77%eth0"}, nil, "want an IPv4 or IPv6 address"},
		"empty":                     {[]string{""}, nil, "want an IPv4 or IPv6 address"},
		"last good, first not":      {[]string{"10.7.0.1", "fd00::77"}, nil, "10.7.0.1"},
		"IPv6 subnet's own address": {[]string{"fd00::"}, nil, "fd00::"},
	} {
		t.Run(name, func(t *testing.T) {
			update(t, newStore(t), func(tx *state.Tx) error {
				acquire(t, tx, Request{Key: key(0), Sets: s.Sets}) // .2 and ::2
				got, err := Acquire(tx, Request{Key: key(1), Sets: s.Sets, Addresses: c.ask})
				var request *RequestError
				switch {
				case c.fault == "" && (err != nil || !cmp.Equal(addrs(got), ips(c.want...), compare)):
					t.Errorf("want %v, got %v, %v", c.want, got, err)
				case c.fault != "" && (!errors.As(err, &request) || !strings.Contains(err.Error(), c.fault)):
					t.Errorf("want a RequestError with %q, got %v, %v", c.fault, got, err)
				}
				return nil
			})
		})
	}
}

func TestRequestedAddressThatIsHeldNamesItsHolder(t *testing.T) {
	s := settings(t, ranges("10.9.0.0/24"))
	update(t, newStore(t), func(tx *state.Tx) error {
		acquire(t, tx, Request{Key: key(1), Sets: s.Sets, Addresses: []string{"10.9.0.9"}, ReuseDelay: time.Hour})
		_, err := Acquire(tx, Request{Key: key(2), Sets: s.Sets, Addresses: []string{"10.9.0.9"}})
		var inUse *state.AddressInUseError
		if !errors.As(err, &inUse) || inUse.Holder != key(1) {
			t.Errorf("held address: want AddressInUseError of %q, got %v", key(1), err)
		}
		if code, _ := ErrorCode(err); code != 11 {
			t.Errorf("CNI code: want 11, got %d", code)
		}
		if err := Release(tx, key(1)); err != nil {
			return err
		}
		if got := acquire(t, tx, Request{Key: key(2), Sets: s.Sets, Addresses: []string{"10.9.0.9"}}); !cmp.Equal(got, ips("10.9.0.9"), compare) {
			t.Errorf("resting address: got %v", got)
		}
		return nil
	})
}

func TestNetworksThatShareARangeShareItsAddresses(t *testing.T) {
	s := settings(t, ranges("10.9.0.0/29"))
	update(t, newStore(t), func(tx *state.Tx) error {
		seen := map[netip.Addr]bool{}
		for i := range 5 {
			k := key(i)
			k.Network = []string{"a", "b"}[i%2]
			seen[acquire(t, tx, Request{Key: k, Sets: s.Sets})[0]] = true
		}
		if len(seen) != 5 {
			t.Errorf("five attachments got %d addresses", len(seen))
		}
		return nil
	})
}

func TestCursorOutsideAChangedRangeIsForgotten(t *testing.T) {
	update(t, newStore(t), func(tx *state.Tx) error {
		wide := settings(t, Config{Ranges: [][]Range{{{Subnet: "10.9.0.0/24"}}}})
		acquire(t, tx, Request{Key: key(1), Sets: wide.Sets, Addresses: nil})
		narrow := settings(t, Config{Ranges: [][]Range{{{Subnet: "10.9.0.0/24", Exclude: []string{"10.9.0.2"}}}}})
		if got := acquire(t, tx, Request{Key: key(2), Sets: narrow.Sets}); !cmp.Equal(got, ips("10.9.0.3"), compare) {
			t.Errorf("after the cursor's address was excluded: got %v", got)
		}
		return nil
	})
}
