package reconcile_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/agent/reconcile"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/tap"
	"github.com/tapir-cni/tapir/xdp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// vanish takes the sandbox away, as a runtime does that forgets the DEL.
func (p *pod) vanish() {
	p.t.Helper()
	if err := unix.Unmount(p.netns, unix.MNT_DETACH); err != nil {
		p.t.Fatal(err)
	}
	must(p.t, os.Remove(p.netns))
}

func (p *pod) known() bool { _, ok := p.record(); return ok }

// entriesOf counts the entries of the pinned map in an attachment's block of ifindexes.
func entriesOf(t testing.TB, rec state.Attachment) (n int) {
	t.Helper()
	progs, err := xdp.Open(bpffs)
	must(t, err)
	defer progs.Close()
	list, err := progs.Indexes()
	must(t, err)
	for _, i := range list {
		if int(i)/4 == rec.Host.Index/4 {
			n++
		}
	}
	return n
}

func leased(t testing.TB, key state.Key) (ok bool) {
	t.Helper()
	must(t, state.New(state.Config{}).View(context.Background(), func(tx *state.Tx) (err error) {
		_, ok, err = tx.Lease(key)
		return err
	}))
	return ok
}

func TestAnAttachmentWhoseSandboxIsGoneIsRemovedAfterTheGraceTime(t *testing.T) {
	requireNode(t)
	lives, dies := add(t, `"ipMasq": true,`), add(t, `"ipMasq": true, "xdp": {"mode": "auto"},`)
	m := start(t, reconcile.Options{})
	rec := dies.recorded()
	if entriesOf(t, rec) == 0 {
		t.Fatal("it has no entries while it lives")
	}
	began := time.Now()
	dies.vanish()
	eventually(t, "it is removed", func() bool { return !dies.known() })
	if took := time.Since(began); took < grace {
		t.Errorf("it was removed after %v, before the grace time", took)
	}
	eventually(t, "that is counted", func() bool { r := m.result(reconcile.SandboxGone); return r.Repaired == 1 && r.Open == 0 })
	if entriesOf(t, rec) != 0 || leased(t, rec.Key) {
		t.Error("entries or lease are left")
	}
	never(t, 2*grace, "one that lives is removed", func() bool { return !lives.known() })
	if wrong := lives.wrong(); len(wrong) > 0 {
		t.Errorf("the one that lives: %q", wrong)
	}
	if !strings.Contains(m.log.String(), rec.Key.String()) {
		t.Error("the log does not name it")
	}
}

// A pending record is of an ADD that died, unless somebody has its hold. Clocks may say what they want of its age.
func TestWhatADeadADDLeftIsRemovedAndWhatIsBeingAddedIsNot(t *testing.T) {
	requireNode(t)
	var dead, being []*pod
	var holds []*state.Hold
	for _, created := range []time.Time{time.Now(), time.Now().Add(time.Hour), time.Unix(1, 0)} {
		d, b := add(t, ""), add(t, "")
		hold, err := state.AcquireHold(t.Context(), b.dir, b.key(), 0)
		must(t, err)
		for _, p := range []*pod{d, b} {
			rec := p.recorded()
			rec.Status, rec.Created = state.Pending, created.UTC()
			must(t, state.New(state.Config{}).Update(t.Context(), func(tx *state.Tx) error { return tx.Put(rec) }))
		}
		dead, being, holds = append(dead, d), append(being, b), append(holds, hold)
	}
	all := func(list []*pod, known bool) func() bool {
		return func() bool { return !slices.ContainsFunc(list, func(p *pod) bool { return p.known() != known }) }
	}
	m := start(t, reconcile.Options{})
	never(t, grace*2/3, "one is removed before the grace time", func() bool { return !all(dead, true)() })
	eventually(t, "what dead ADDs left is removed", all(dead, false))
	for _, p := range dead {
		p.in(func() {
			if _, err := netlink.LinkByName("tap-eth0"); err == nil {
				t.Error("a TAP is left")
			}
		})
	}
	never(t, grace*3/2, "what is being added is removed", func() bool { return !all(being, true)() })
	for _, hold := range holds {
		must(t, hold.Release())
	}
	m.Reload(reconcile.Options{Grace: grace, Every: 24 * time.Hour})
	eventually(t, "once nobody adds it any more it is removed as well", all(being, false))
}

func TestAnAttachmentThatTheRuntimeDoesNotKnowIsRemoved(t *testing.T) {
	requireNode(t)
	named := func(name string) *pod {
		p := newPod(t, "")
		p.podName = name
		p.add()
		return p
	}
	known, unknown, used, byHand := named("known"), named("unknown"), named("used"), add(t, "")
	q, err := tap.OpenQueues(tap.QueueOptions{Netns: used.netns, Name: "tap-eth0", Count: 1, NAPI: true})
	must(t, err)
	cri := newRuntime(t, known.id)
	start(t, reconcile.Options{CRIEndpoint: "unix://" + cri.path})
	eventually(t, "it is removed", func() bool { return !unknown.known() })
	unknown.in(func() {
		if _, err := netlink.LinkByName("tap-eth0"); err == nil {
			t.Error("its TAP is left")
		}
	})
	never(t, grace, "another one is removed", func() bool { return !known.known() || !used.known() || !byHand.known() })
	must(t, q.Close())
}

// Nothing is removed while the runtime does not answer, or has forgotten everything; and what it did not know before begins anew.
func TestNothingIsRemovedOnTheRuntimesSilence(t *testing.T) {
	requireNode(t)
	p := newPod(t, "")
	p.podName = "p"
	p.add()
	cri := newRuntime(t, "somebody-else")
	o := reconcile.Options{CRIEndpoint: cri.path, Grace: 2 * time.Second, Every: 200 * time.Millisecond}
	m := start(t, o)
	eventually(t, "it looks dead", func() bool { return m.result(reconcile.SandboxUnknown).Open == 1 })
	silences := map[string]func(){
		"an error":   func() { cri.set(true) },
		"no sandbox": func() { cri.set(false) },
		"no socket":  func() { cri.close() },
	}
	for name, silence := range silences {
		silence()
		never(t, o.Grace+500*time.Millisecond, name+": it is removed", func() bool { return !p.known() })
	}
	if !strings.Contains(m.log.String(), "the runtime cannot be asked") {
		t.Error("the log does not say so")
	}
	cri.set(false, "somebody-else")
	cri.open(t)
	began := time.Now()
	eventually(t, "it is removed once the runtime is back", func() bool { return !p.known() })
	if took := time.Since(began); took < o.Grace {
		t.Errorf("it was removed %v after the runtime was back, before the grace time", took)
	}
}

func TestStraysAreRemovedOrReported(t *testing.T) {
	requireNode(t)
	lives := add(t, "")
	other := newPod(t, `"prevResult": {"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "sandbox": "x"}], "ips": [{"address": "10.50.0.2/24", "gateway": "10.50.0.1", "interface": 0}]},`)
	other.dir = filepath.Join(t.TempDir(), "other") // a state folder that the reconciler does not know
	f, err := os.Open(other.netns)
	must(t, err)
	must(t, netlink.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: "theirs"}, PeerName: "eth0", PeerNamespace: netlink.NsFd(f.Fd()),
	}))
	must(t, f.Close())
	t.Cleanup(func() { must(t, netlink.LinkDel(link(t, "theirs"))) })
	other.add()
	progs, err := xdp.Open(bpffs)
	must(t, err)
	defer progs.Close()
	const stray = 1<<30 - 400
	e, err := progs.Lookup(uint32(lives.recorded().TAP.Index))
	must(t, err)
	e.Counters = stray
	must(t, progs.Reserve(map[uint32]xdp.Endpoint{stray: e}))
	lease := state.Key{Network: "bridge", ContainerID: "gone", IfName: "eth0"}
	must(t, state.New(state.Config{}).Update(t.Context(), func(tx *state.Tx) error {
		return tx.PutLease(state.Lease{Key: lease, Addresses: []state.Address{{Prefix: netip.MustParsePrefix("10.8.0.2/24")}}})
	}))
	m := start(t, reconcile.Options{})
	eventually(t, "the stray entry is removed", func() bool { _, err := progs.Lookup(stray); return err != nil })
	eventually(t, "the lease is reported", func() bool { return m.result(reconcile.StrayLease).Reported == 1 })
	if !leased(t, lease) {
		t.Error("the lease was released")
	}
	for name, index := range map[string]int{"that lives": lives.recorded().TAP.Index, "of another state folder": other.recorded().TAP.Index} {
		if _, err := progs.Lookup(uint32(index)); err != nil {
			t.Errorf("the entry of one %s: %v", name, err)
		}
	}
	m.Reload(reconcile.Options{Grace: grace, Every: 24 * time.Hour, Policies: reconcile.Policies{reconcile.StrayLease: reconcile.Repair}})
	eventually(t, "the lease is released where that is asked for", func() bool { return !leased(t, lease) })
	if !leased(t, lives.key()) {
		t.Error("the lease of one that lives was released")
	}
}

// Kata's file of a sandbox that is gone.
func TestAStrayDeviceOfKatasFileIsRemoved(t *testing.T) {
	requireNode(t)
	const dir = "/run/kata-containers/dans"
	must(t, os.MkdirAll(dir, 0o700))
	lives := add(t, `"placement": "host", "vmm": "kata",`)
	text := func(name string) string {
		return fmt.Sprintf(`{"netns": "/run/netns/gone", "devices": [{"name": "eth0", "device": {"type": "host-tap", "tap_name": %q}}]}`, name)
	}
	must(t, os.WriteFile(dir+"/gone.json", []byte(text("tprt0123456789a")), 0o600))
	must(t, os.WriteFile(dir+"/others.json", []byte(text("theirs")), 0o600))
	start(t, reconcile.Options{})
	eventually(t, "the file is removed", func() bool { _, err := os.Stat(dir + "/gone.json"); return err != nil })
	for _, path := range []string{dir + "/others.json", lives.recorded().DAN} {
		if _, err := os.Stat(path); err != nil {
			t.Errorf("another's file: %v", err)
		}
	}
	must(t, os.Remove(dir+"/others.json"))
}
