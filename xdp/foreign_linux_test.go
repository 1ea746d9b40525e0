package xdp

import (
	"errors"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/tapir-cni/tapir/internal/testnode"
)

// attachForeign makes the sandbox's veth one that another plugin made: only the TAP has an endpoint.
func (s *sandbox) attachForeign(m Method) {
	s.t.Helper()
	ep := guestEndpoint()
	ep.Peer, ep.Redirect, ep.Counters = s.podIndex, RedirectEgress, s.tapIndex
	if err := s.p.Reserve(map[uint32]Endpoint{s.tapIndex: ep}); err != nil {
		s.t.Fatal(err)
	}
	testnode.In(s.t, s.pod, func() {
		if err := s.p.Attach(int(s.tapIndex), RoleGuest, m); err != nil {
			s.t.Fatal(err)
		}
		if err := s.p.AttachForeign(int(s.podIndex), s.tapIndex, m); err != nil {
			s.t.Fatal(err)
		}
	})
}

func TestForeignDeviceLeadsToTheGuest(t *testing.T) {
	for _, m := range []Method{MethodTCX, MethodClsact} {
		t.Run(string(m), func(t *testing.T) {
			if m == MethodTCX {
				testnode.Require(t, "tcx")
			}
			s := newSandbox(t)
			s.attachForeign(m)
			toGuest := eth(guestMAC, GatewayMAC, typeIPv4, ip4(offLink4, guest4.Addr(), protoUDP, 0, make([]byte, 30)))
			s.wire.send(vnetHdr{}, toGuest)
			s.tap.want("to the guest", toGuest)
			s.tap.send(vnetHdr{}, hello(1))
			s.wire.want("from the guest", hello(1))
			c, err := s.p.Counters(s.tapIndex)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := c[ReasonToGuest], (Counter{1, uint64(len(toGuest))}); got != want {
				t.Errorf("counted %+v to the guest, want %+v", got, want)
			}

			testnode.In(t, s.pod, func() {
				pod := int(s.podIndex)
				if f, err := AttachedForeign(pod); err != nil || f != (Foreign{s.tapIndex, m}) {
					t.Errorf("AttachedForeign: %+v, %v; want the TAP %d by %s", f, err, s.tapIndex, m)
				}
				if err := s.p.AttachForeign(pod, s.tapIndex+1, m); !errors.Is(err, ErrInUse) {
					t.Errorf("a second TAP on the device: %v, want ErrInUse", err)
				}
				if err := DetachForeign(pod, s.tapIndex+1); err != nil {
					t.Errorf("DetachForeign of another TAP's: %v", err)
				}
				if f, err := AttachedForeign(pod); err != nil || f.TAP != s.tapIndex {
					t.Errorf("after another TAP's DetachForeign: %+v, %v", f, err)
				}
				for range 2 {
					if err := DetachForeign(pod, s.tapIndex); err != nil {
						t.Fatal(err)
					}
				}
				if f, err := AttachedForeign(pod); err != nil || f != (Foreign{}) {
					t.Errorf("after DetachForeign: %+v, %v", f, err)
				}
				if n := clsactQdiscs(t, pod); n != 0 {
					t.Errorf("%d clsact qdiscs are left", n)
				}
			})
			s.wire.send(vnetHdr{}, toGuest)
			s.tap.wantNothing("after DetachForeign")
		})
	}
}

// The other plugin's filter sees each frame first, and stays.
func TestForeignFilterComesLast(t *testing.T) {
	p, other := newPrograms(t), newPrograms(t)
	inNetnsWithVeth(t, func(ifindex int) {
		if m, err := ForeignMethod(ifindex); err != nil || (m == MethodTCX) != (HaveTCX() == nil) {
			t.Errorf("method without a qdisc: %s, %v", m, err)
		}
		if err := netlink.QdiscAdd(clsact(ifindex)); err != nil {
			t.Fatal(err)
		}
		if err := netlink.FilterAdd(foreignFilter(ifindex, netlink.HANDLE_MIN_INGRESS, other.programs[RolePod])); err != nil {
			t.Fatal(err)
		}
		if m, err := ForeignMethod(ifindex); err != nil || m != MethodClsact {
			t.Errorf("method beside a qdisc: %s, %v; want %s", m, err, MethodClsact)
		}
		if err := p.AttachForeign(ifindex, 42, MethodClsact); err != nil {
			t.Fatal(err)
		}
		filters, err := ingressFilters(ifindex, netlink.HANDLE_MIN_INGRESS)
		if err != nil {
			t.Fatal(err)
		}
		if len(filters) != 2 || filters[0].(*netlink.BpfFilter).Name != "foreign" || filters[1].(*netlink.BpfFilter).Name != foreignName(42) {
			t.Errorf("filters %v, want the other's before ours", filters)
		}
		if err := DetachForeign(ifindex, 42); err != nil {
			t.Fatal(err)
		}
		if filters, err = ingressFilters(ifindex, netlink.HANDLE_MIN_INGRESS); err != nil || len(filters) != 1 {
			t.Errorf("filters after DetachForeign: %v, %v; want the other's", filters, err)
		}
		if n := clsactQdiscs(t, ifindex); n != 1 {
			t.Errorf("%d clsact qdiscs, want the other's", n)
		}
	})
}

func TestForeignNamesFitTheKernel(t *testing.T) {
	const objName = 15 // BPF_OBJ_NAME_LEN less the NUL
	for _, tap := range []uint32{1, 1048577, 0x7fffffff} {
		name := foreignName(tap)
		if len(name) > objName {
			t.Errorf("%q has %d bytes, want at most %d", name, len(name), objName)
		}
		for _, n := range []string{name, name + ownQdiscSuffix} {
			if got, ok := parseForeignName(n); !ok || got != tap {
				t.Errorf("parseForeignName(%q) is %d, %t; want %d", n, got, ok, tap)
			}
		}
	}
	for _, n := range []string{"", "tapir", "tapir:clsact", "tapir_", "tapir_xyzw1234", "tapir_000000001", "foreign"} {
		if tap, ok := parseForeignName(n); ok {
			t.Errorf("parseForeignName(%q) is %d, want none", n, tap)
		}
	}
}

func TestUsableWithAndWithoutPins(t *testing.T) {
	dir := testDir(t)
	if err := Usable(dir); err != nil {
		t.Errorf("before anything is pinned: %v", err)
	}
	if left := pinned(t, dir); left != nil {
		t.Errorf("asking left %v", left)
	}
	mustEnsure(t, dir)
	if err := Usable(dir); err != nil {
		t.Errorf("with pins: %v", err)
	}
}
