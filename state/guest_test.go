package state

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// Clones of a snapshot have one MAC; all others of a network have their own, and a MAC is found by those alone.
func TestClonesMayHaveOneMAC(t *testing.T) {
	s := newStore(t)
	mac := attachment(1).GuestMAC
	clone := func(i int) Attachment {
		a := attachment(i)
		a.GuestMAC, a.FixedMAC = mac, true
		return a
	}
	wantHolder := func(tx *Tx, what string, want Key) {
		t.Helper()
		got, _, err := tx.ByGuestMAC("net", mac)
		if err != nil || got != want {
			t.Errorf("%s: holder of %s: want %q, got %q, %v", what, mac, want, got, err)
		}
	}
	update(t, s, func(tx *Tx) error {
		allWell(t, tx.Put(clone(2)), tx.Put(clone(3)), tx.Put(clone(3)))
		wantHolder(tx, "clones alone", Key{})
		allWell(t, tx.Put(attachment(1)))
		wantHolder(tx, "one that has it alone", key(1))
		allWell(t, tx.Delete(key(2)))
		wantHolder(tx, "after a clone went", key(1))
		other := attachment(4)
		other.GuestMAC = mac
		if err := tx.Put(other); err == nil {
			t.Error("two that are no clones have one MAC")
		}
		one := clone(1)
		allWell(t, tx.Put(one))
		wantHolder(tx, "when it became a clone", Key{})
		one.FixedMAC = false
		allWell(t, tx.Put(one))
		wantHolder(tx, "when it is none any more", key(1))
		return nil
	})
}

// The kernel knows three clones: none loses its MAC.
func TestClonesAreRebuilt(t *testing.T) {
	a, b := attachment(1), attachment(2)
	b.GuestMAC = a.GuestMAC
	s := newStore(t, a, b)
	view(t, s, func(tx *Tx) error {
		for i, fixed := range map[int]bool{1: false, 2: true} {
			got, ok, err := tx.Attachment(key(i))
			if err != nil || !ok || got.GuestMAC != a.GuestMAC || got.FixedMAC != fixed {
				t.Errorf("attachment %d: want MAC %s, fixed %t, got %+v, %v", i, a.GuestMAC, fixed, got, err)
			}
		}
		return nil
	})
}

func TestWhatTheGuestHasInPlaceOfThePods(t *testing.T) {
	pfx, ip := netip.MustParsePrefix, netip.MustParseAddr
	a := Attachment{
		Addresses: []Address{{pfx("10.9.0.2/24"), ip("10.9.0.1")}, {pfx("fd00:9::2/64"), ip("fd00:9::1")}},
		Routes:    []Route{{pfx("0.0.0.0/0"), ip("10.9.0.1")}, {pfx("10.0.0.0/8"), netip.Addr{}}, {pfx("::/0"), ip("fd00:9::1")}},
		Guest:     []Address{{pfx("172.16.0.2/30"), ip("172.16.0.1")}},
	}
	equal := cmpopts.EquateComparable(netip.Prefix{}, netip.Addr{})
	if diff := cmp.Diff([]Address{{pfx("172.16.0.2/30"), ip("172.16.0.1")}, a.Addresses[1]}, a.GuestAddresses(), equal); diff != "" {
		t.Errorf("addresses (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]Route{{pfx("0.0.0.0/0"), ip("172.16.0.1")}, {pfx("10.0.0.0/8"), ip("172.16.0.1")}, a.Routes[2]}, a.GuestRoutes(), equal); diff != "" {
		t.Errorf("routes (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]netip.Addr{ip("10.9.0.2")}, a.Outside(), equal); diff != "" {
		t.Errorf("outside (-want +got):\n%s", diff)
	}
	a.Guest = nil
	if got := a.GuestAddresses(); !cmp.Equal(got, a.Addresses, equal) || len(a.Outside()) > 0 {
		t.Errorf("without an identity: got %v", got)
	}
}
