package vm_test

import (
	"encoding/json"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/vishvananda/netlink"

	"github.com/tapir-cni/tapir/internal/guestconfig"
	"github.com/tapir-cni/tapir/internal/microvm/stream"
	"github.com/tapir-cni/tapir/internal/microvm/vmtest"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/xdp"
)

// The Service's addresses, whose backend is the second guest.
var serviceAddrs = []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:96::10")}

// Two guests with virtio's default offloads, one with a queue pair and one with two, reach each other by the shortcut, which QEMU's way of opening a TAP gives the native
// run; and by a Service, whose frames stay off it.
func TestGuestsOnTheShortcut(t *testing.T) {
	testnode.Require(t, "bpf", "btf", "tcx")
	img, binDir := vmtest.Image(t)
	nodeAddresses(t)
	t.Cleanup(func() { cleanUp(t) })
	cni := libcni.NewCNIConfigWithCacheDir([]string{binDir}, t.TempDir(), nil)
	pods := []*pod{attachShortcut(t, cni, "short-1", 1), attachShortcut(t, cni, "short-2", 2)}
	a, b := pods[0], pods[1]
	boot(t, img, pods)
	nft(t, `table inet proxy {
	chain pre { type nat hook prerouting priority dstnat;
		ip daddr 10.96.0.10 dnat ip to `+b.addr(0).String()+`
		ip6 daddr fd00:96::10 dnat ip6 to `+b.addr(1).String()+`
	}
	chain forward { type filter hook forward priority 0; ct state invalid drop; }
}`)
	t.Cleanup(func() { nft(t, "delete table inet proxy") })

	t.Run("pings", func(t *testing.T) { testPings(t, pods, 1500) })
	wantOnShortcut(t, binDir, a, "xdp_to_guest")
	wantOnShortcut(t, binDir, b, "xdp_to_guest")
	for family, name := range families {
		t.Run("TCP, "+name, func(t *testing.T) {
			before := path(t, binDir, a)
			transfer(t, a, b, b.addr(family))
			transfer(t, b, a, a.addr(family))
			after := path(t, binDir, a)
			if n := after.taken() - before.taken(); n == 0 {
				t.Errorf("no frame took the shortcut: %v", after.Counters)
			}
			if n := after.passed("conntrack") - before.passed("conntrack"); n > 0 {
				t.Errorf("conntrack knew %d frames' flows: %v", n, after.Counters)
			}
		})
		t.Run("Service, "+name, func(t *testing.T) {
			beforeA, beforeB := path(t, binDir, a), path(t, binDir, b)
			transfer(t, a, b, serviceAddrs[family])
			afterA, afterB := path(t, binDir, a), path(t, binDir, b)
			if n := afterA.taken() + afterB.taken() - beforeA.taken() - beforeB.taken(); n > 0 {
				t.Errorf("%d frames of a Service took the shortcut: %v, %v", n, afterA.Counters, afterB.Counters)
			}
			if afterB.passed("conntrack") == beforeB.passed("conntrack") {
				t.Errorf("conntrack knew none of the replies: %v", afterB.Counters)
			}
		})
	}
	for _, p := range pods {
		r := path(t, binDir, p)
		if r.Mode != "native" || r.Native == 0 {
			t.Errorf("%s: want native runs in mode native, got %+v", p.id, r)
		}
		t.Logf("%s: %d of %d runs were native, %d frames taken: %d by XDP, %d by tc; %d checksums completed", p.id, r.Native, r.Native+r.Generic,
			r.taken(), r.Counters["xdp_to_guest"].Frames, r.Counters["tc_to_guest"].Frames, r.Counters["xdp_checksum_completed"].Frames)
	}
}

func shortcutConfig(t *testing.T, queues int) *libcni.NetworkConfigList {
	t.Helper()
	list, err := libcni.NetworkConfFromBytes([]byte(`{"cniVersion": "1.1.0", "name": "vmtest", "plugins": [{"type": "tapir", "mtu": 1500, "xdp": {"mode": "native"},
		"queues": ` + strconv.Itoa(queues) + `, "ipam": {"type": "tapir-ipam", "ranges": [[{"subnet": "10.9.0.0/24"}], [{"subnet": "fd00:9::/64"}]], "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}}]}`))
	check(t, err)
	return list
}

func attachShortcut(t *testing.T, cni libcni.CNI, id string, queues int) *pod {
	t.Helper()
	p := attach(t, cni, shortcutConfig(t, queues), id)
	var err error
	p.guest, err = guestconfig.FromResult(p.result, guestconfig.Query{ContainerID: p.id, IfName: "eth0", Queues: queues})
	check(t, err)
	testnode.In(t, p.netns, func() {
		l, err := netlink.LinkByName(p.guest.TAP)
		check(t, err)
		p.tapIndex = l.Attrs().Index
	})
	return p
}

// transfer sends TCP from one guest to the server at an address, and back, compared by hash.
func transfer(t *testing.T, from, to *pod, at netip.Addr) {
	t.Helper()
	const n, limit = 10e6, 2 * time.Minute
	for i, move := range []func() (stream.Result, error){
		func() (stream.Result, error) { return from.vm.Upload(t.Context(), at, 1, n, limit) },
		func() (stream.Result, error) { return from.vm.Download(t.Context(), at, 2, n, limit) },
	} {
		r, err := move()
		if err == nil {
			err = r.Err(n)
		}
		if err != nil {
			t.Errorf("%s to %s by %s, %d: %v", from.id, to.id, at, i, err)
			continue
		}
		t.Logf("%s to %s by %s: %.0f Mbit/s, hash %016x", from.id, to.id, at, r.Mbps(), r.Received)
	}
}

func nft(t *testing.T, rules string) {
	t.Helper()
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("nft: %v: %s", err, out)
	}
}

// pathRow is what "tapirctl xdp" says of an attachment.
type pathRow struct {
	Mode            string
	Native, Generic uint64 // runs of the program
	Counters        map[string]xdp.Counter
}

func (r pathRow) taken() uint64 {
	return r.Counters["xdp_to_guest"].Frames + r.Counters["tc_to_guest"].Frames
}

func (r pathRow) passed(why string) uint64 {
	return r.Counters["xdp_pass_"+why].Frames + r.Counters["tc_pass_"+why].Frames
}

func path(t *testing.T, binDir string, p *pod) pathRow {
	t.Helper()
	out, err := exec.Command(filepath.Join(binDir, "tapirctl"), "xdp", p.id, "-o", "json").Output()
	check(t, err)
	var rows []pathRow
	if err := json.Unmarshal(out, &rows); err != nil || len(rows) != 1 {
		t.Fatalf("tapirctl xdp %s: want one attachment, got %s (%v)", p.id, out, err)
	}
	return rows[0]
}

func wantOnShortcut(t *testing.T, binDir string, p *pod, reason string) {
	t.Helper()
	if r := path(t, binDir, p); r.Counters[reason].Frames == 0 {
		t.Errorf("%s: no frame under %s: %v", p.id, reason, r.Counters)
	}
}
