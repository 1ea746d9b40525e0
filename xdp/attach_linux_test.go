package xdp

import (
	"errors"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tapir-cni/tapir/internal/testnode"
)

// inNetnsWithVeth runs f in a netns, with a veth's ifindex.
func inNetnsWithVeth(t testing.TB, f func(ifindex int)) {
	t.Helper()
	testnode.In(t, testnode.NewNetns(t), func() {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "v0"}, PeerName: "v1"}); err != nil {
			t.Fatal(err)
		}
		f(int(up(t, "v0")))
	})
}

func wantAttached(t *testing.T, p *Programs, ifindex int, role Role, m Method, want bool) {
	t.Helper()
	got, err := p.Attached(ifindex, role, m)
	if err != nil {
		t.Fatal(err)
	}
	if got != want {
		t.Errorf("%s program attached by %s: %t, want %t", role, m, got, want)
	}
}

func TestAttachIsSeenAndUndone(t *testing.T) {
	for _, m := range []Method{MethodTCX, MethodClsact} {
		t.Run(string(m), func(t *testing.T) {
			p := newPrograms(t)
			if m == MethodTCX {
				testnode.Require(t, "tcx")
			}
			inNetnsWithVeth(t, func(ifindex int) {
				wantAttached(t, p, ifindex, RoleHost, m, false)
				if err := p.Detach(ifindex, RoleHost, m); err != nil {
					t.Errorf("Detach of nothing: %v", err)
				}
				for range 2 {
					if err := p.Attach(ifindex, RoleHost, m); err != nil {
						t.Fatal(err)
					}
					wantAttached(t, p, ifindex, RoleHost, m, true)
				}
				wantAttached(t, p, ifindex, RoleGuest, m, false)
				if err := p.Detach(ifindex, RoleGuest, m); err != nil {
					t.Errorf("Detach of another program: %v", err)
				}
				wantAttached(t, p, ifindex, RoleHost, m, true)
				if err := p.Detach(ifindex, RoleHost, m); err != nil {
					t.Fatal(err)
				}
				wantAttached(t, p, ifindex, RoleHost, m, false)
				if got := clsactQdiscs(t, ifindex); got != 0 {
					t.Errorf("%d clsact qdiscs are left", got)
				}

				// A device that is not there has nothing, and takes nothing.
				wantAttached(t, p, 4242, RoleHost, m, false)
				if err := p.Detach(4242, RoleHost, m); err != nil {
					t.Errorf("Detach from no device: %v", err)
				}
				if err := p.Attach(4242, RoleHost, m); !errors.Is(err, unix.ENODEV) {
					t.Errorf("Attach to no device: %v, want ENODEV", err)
				}
			})
		})
	}
}

func TestAttachRefusesWhatIsNoRoleOrMethod(t *testing.T) {
	p := newPrograms(t)
	if err := p.Attach(1, RoleUnknown, MethodTCX); err == nil || !strings.Contains(err.Error(), "role: want guest, pod or host") {
		t.Errorf("no role: %v", err)
	}
	if err := p.Attach(1, RoleHost, "auto"); err == nil || !strings.Contains(err.Error(), `method: want tcx or clsact, got "auto"`) {
		t.Errorf("no method: %v", err)
	}
}

func clsactQdiscs(t *testing.T, ifindex int) int {
	t.Helper()
	qdiscs, err := netlink.QdiscList(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: ifindex}})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, q := range qdiscs {
		if q.Type() == "clsact" {
			n++
		}
	}
	return n
}

// foreignFilter is somebody else's filter, at another priority.
func foreignFilter(ifindex int, parent uint32, prog *ebpf.Program) *netlink.BpfFilter {
	return &netlink.BpfFilter{
		FilterAttrs:  netlink.FilterAttrs{LinkIndex: ifindex, Parent: parent, Handle: 1, Protocol: unix.ETH_P_ALL, Priority: 1},
		Fd:           prog.FD(),
		Name:         "foreign",
		DirectAction: true,
	}
}

func TestClsactOfOthersStays(t *testing.T) {
	p, other := newPrograms(t), newPrograms(t)
	filters := func(ifindex int, parent uint32) (names []string) {
		fs, err := ingressFilters(ifindex, parent)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range fs {
			names = append(names, f.(*netlink.BpfFilter).Name)
		}
		return names
	}
	for _, tt := range []struct {
		name   string
		first  bool   // the other made the qdisc
		parent uint32 // of the other's filter; 0: none
		left   int    // qdiscs after our Detach
	}{
		{"ours alone", false, 0, 0},
		{"ours, with the other's ingress filter", false, netlink.HANDLE_MIN_INGRESS, 1},
		{"ours, with the other's egress filter", false, netlink.HANDLE_MIN_EGRESS, 1},
		{"the other's", true, netlink.HANDLE_MIN_INGRESS, 1},
		{"the other's, empty", true, 0, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inNetnsWithVeth(t, func(ifindex int) {
				if tt.first {
					if err := netlink.QdiscAdd(clsact(ifindex)); err != nil {
						t.Fatal(err)
					}
				}
				if err := p.Attach(ifindex, RoleHost, MethodClsact); err != nil {
					t.Fatal(err)
				}
				if tt.parent != 0 {
					if err := netlink.FilterAdd(foreignFilter(ifindex, tt.parent, other.programs[RolePod])); err != nil {
						t.Fatal(err)
					}
				}
				if err := p.Detach(ifindex, RoleHost, MethodClsact); err != nil {
					t.Fatal(err)
				}
				if got := clsactQdiscs(t, ifindex); got != tt.left {
					t.Errorf("%d clsact qdiscs, want %d", got, tt.left)
				}
				if tt.parent != 0 {
					if got := filters(ifindex, tt.parent); len(got) != 1 || got[0] != "foreign" {
						t.Errorf("filters %q, want the other's", got)
					}
				}
			})
		})
	}
}

func TestClsactOfAnotherVersionIsInTheWay(t *testing.T) {
	p, other := newPrograms(t), newPrograms(t)
	inNetnsWithVeth(t, func(ifindex int) {
		if err := other.Attach(ifindex, RoleHost, MethodClsact); err != nil {
			t.Fatal(err)
		}
		wantAttached(t, p, ifindex, RoleHost, MethodClsact, false)
		if err := p.Attach(ifindex, RoleHost, MethodClsact); !errors.Is(err, unix.EEXIST) {
			t.Errorf("Attach over another version: %v, want EEXIST", err)
		}
		if err := p.Detach(ifindex, RoleHost, MethodClsact); err != nil {
			t.Fatal(err)
		}
		wantAttached(t, other, ifindex, RoleHost, MethodClsact, true)
	})
}

func TestTCXOfOthersStaysAndRunsAfterOurs(t *testing.T) {
	testnode.Require(t, "tcx")
	p, other := newPrograms(t), newPrograms(t)
	inNetnsWithVeth(t, func(ifindex int) {
		err := link.RawAttachProgram(link.RawAttachProgramOptions{Target: ifindex, Program: other.programs[RolePod], Attach: ebpf.AttachTCXIngress})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Attach(ifindex, RoleHost, MethodTCX); err != nil {
			t.Fatal(err)
		}
		ours, err := programID(p.programs[RoleHost])
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := programID(other.programs[RolePod])
		if err != nil {
			t.Fatal(err)
		}
		order := func() (ids []ebpf.ProgramID) {
			res, err := link.QueryPrograms(link.QueryOptions{Target: ifindex, Attach: ebpf.AttachTCXIngress})
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range res.Programs {
				ids = append(ids, a.ID)
			}
			return ids
		}
		if got := order(); len(got) != 2 || got[0] != ours || got[1] != theirs {
			t.Errorf("programs %v, want ours %d before theirs %d", got, ours, theirs)
		}
		if err := p.Detach(ifindex, RoleHost, MethodTCX); err != nil {
			t.Fatal(err)
		}
		if got := order(); len(got) != 1 || got[0] != theirs {
			t.Errorf("programs %v after Detach, want theirs %d", got, theirs)
		}
	})
}

func TestHaveTCXAgreesWithAttaching(t *testing.T) {
	p := newPrograms(t)
	inNetnsWithVeth(t, func(ifindex int) {
		have, err := HaveTCX(), p.Attach(ifindex, RoleHost, MethodTCX)
		if (have == nil) != (err == nil) {
			t.Errorf("HaveTCX: %v, Attach: %v", have, err)
		}
		if have == nil {
			return
		}
		for _, err := range []error{have, err} {
			if u, ok := errors.AsType[*UnsupportedError](err); !ok || u.Feature != "tcx" {
				t.Errorf("%v, want an UnsupportedError for tcx", err)
			}
		}
	})
}
