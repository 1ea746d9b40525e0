package reconcile_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/agent/reconcile"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/state"
	"golang.org/x/sys/unix"
)

// countRecords counts the attachments of the state.
func countRecords(t testing.TB) (n int) {
	t.Helper()
	must(t, state.New(state.Config{}).View(context.Background(), func(tx *state.Tx) error {
		n = 0
		return tx.ForEach("", func(state.Attachment) error { n++; return nil })
	}))
	return n
}

func TestAThousandPodsLeaveAtOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("it adds many pods")
	}
	requireNode(t)
	const many = 200
	stays := add(t, "")
	var all []*pod
	for range many {
		p := newPod(t, "")
		must(t, p.cni("ADD"))
		all = append(all, p)
	}
	recs := make([]state.Attachment, many)
	for i, p := range all {
		recs[i] = p.recorded()
	}
	m := start(t, reconcile.Options{})
	var cpu, after unix.Rusage
	must(t, unix.Getrusage(unix.RUSAGE_SELF, &cpu))
	began := time.Now()
	for _, p := range all {
		p.vanish()
	}
	eventually(t, "all are removed", func() bool { return countRecords(t) == 1 })
	must(t, unix.Getrusage(unix.RUSAGE_SELF, &after))
	t.Logf("%d removed %v after they began to leave; %v of CPU", many, time.Since(began).Round(time.Millisecond), time.Duration(after.Utime.Nano()+after.Stime.Nano()-cpu.Utime.Nano()-cpu.Stime.Nano()).Round(time.Millisecond))
	eventually(t, "each is counted once", func() bool {
		r := m.result(reconcile.SandboxGone)
		return r.Repaired == many && r.Found == many && r.Failed == 0
	})
	for _, rec := range recs {
		if entriesOf(t, rec) != 0 {
			t.Fatalf("%s has entries", rec.Key)
		}
	}
	if wrong := stays.wrong(); len(wrong) > 0 {
		t.Errorf("the one that stays: %q", wrong)
	}
}

// Without its state the watch's picture comes from the kernel, which knows too little to repair anything; attachments that live stay, and so
// does the traffic's way.
func TestAStateThatIsCorruptIsNoReasonToRemoveAnything(t *testing.T) {
	requireNode(t)
	p := add(t, "")
	rec := p.recorded()
	m := start(t, reconcile.Options{})
	path := filepath.Join(state.DefaultDir, "state.db")
	must(t, os.WriteFile(path, bytes.Repeat([]byte("x"), 64<<10), 0o600))
	m.Reload(reconcile.Options{Grace: grace, Every: 300 * time.Millisecond})
	eventually(t, "the state is rebuilt", func() bool { now, ok := p.record(); return ok && now.Rebuilt })
	never(t, 2*grace, "the attachment or its entries are removed", func() bool { return !p.known() || entriesOf(t, rec) != 2 })
	p.vanish()
	eventually(t, "once its sandbox is gone it is removed", func() bool { return !p.known() })
}

func TestABPFFileSystemThatIsUnmountedIsReported(t *testing.T) {
	requireNode(t)
	p := add(t, "")
	m := start(t, reconcile.Options{})
	mounted := unix.Mount("none", "/sys/fs/bpf", "bpf", 0, "") // over the one that is there: the pins are out of sight
	must(t, mounted)
	t.Cleanup(func() {
		if err := unix.Unmount("/sys/fs/bpf", 0); err != nil && !errors.Is(err, unix.EINVAL) {
			t.Error(err)
		}
	})
	m.Reload(reconcile.Options{Grace: grace, Every: 24 * time.Hour})
	eventually(t, "it is reported", func() bool { return m.result("pins").Reported == 1 })
	dies := add(t, "") // pins programs anew
	must(t, dies.cni("CHECK"))
	dies.vanish()
	eventually(t, "what is dead is removed all the same", func() bool { return !dies.known() })
	if _, ok := p.record(); !ok {
		t.Error("the one that lives was removed")
	}
	must(t, unix.Unmount("/sys/fs/bpf", 0))
	m.Reload(reconcile.Options{Grace: grace, Every: 24 * time.Hour})
	eventually(t, "it is over", func() bool { return m.result("pins").Open == 0 })
	if wrong := p.wrong(); len(wrong) > 0 {
		t.Errorf("wrong: %q", wrong)
	}
}

// Processes add and remove the same attachments, die in the middle, and lose their sandboxes, while the reconciler removes whatever looks dead
// for an instant and puts right whatever differs. An ADD that said that it succeeded has all it made.
func TestNothingThatIsBeingAddedIsRemoved(t *testing.T) {
	requireNode(t)
	m := start(t, reconcile.Options{Grace: 30 * time.Millisecond, Every: 50 * time.Millisecond, MaxRepairs: 1 << 30})
	const processes, rounds = 10, 10
	var pods []*pod
	for range processes {
		pods = append(pods, newPod(t, `"ipMasq": true, "xdp": {"mode": "auto"},`))
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	added, killed := 0, 0
	for _, p := range pods {
		all.Go(func() {
			for range rounds {
				if rand.N(3) == 0 { // a killed ADD; what it left is removed by the next, or by the reconciler
					if err := p.cni("DEL"); err != nil {
						t.Error(err)
					}
					c := p.command("ADD")
					if err := c.Start(); err != nil {
						t.Error(err)
						return
					}
					for until := time.Now().Add(time.Second); !state.Held(p.dir, p.key()) && time.Now().Before(until); { // it may end before it is seen
						time.Sleep(time.Millisecond)
					}
					time.Sleep(rand.N(20 * time.Millisecond)) // while it works
					_ = c.Process.Kill()
					_ = c.Wait()
					rec, ok := p.record()
					unfinished := ok && rec.Status == state.Pending
					mu.Lock()
					if unfinished {
						killed++
					}
					mu.Unlock()
					if unfinished && rand.N(2) == 0 {
						time.Sleep(rand.N(time.Second)) // about when it is removed
					}
				}
				if err := p.cni("DEL"); err != nil {
					t.Error(err)
				}
				if err := p.cni("ADD"); err != nil {
					t.Error(err)
					continue
				}
				time.Sleep(rand.N(100 * time.Millisecond))
				if err := p.cni("CHECK"); err != nil {
					t.Error(err)
				}
				mu.Lock()
				added++
				mu.Unlock()
			}
			if err := p.cni("DEL"); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	r := m.result(reconcile.Unfinished)
	t.Logf("%d ADDs, %d killed in the middle, of which the reconciler removed %d", added, killed, r.Repaired)
	if r.Repaired == 0 {
		t.Error("the reconciler removed nothing: the test shows nothing")
	}
	for _, k := range reconcile.Kinds() {
		if strings.HasPrefix(string(k), "stray-") || k == reconcile.Unfinished {
			continue // left by an ADD that was killed before its record was there, or after; of what lives CHECK would miss it
		}
		if got := m.result(k); got.Repaired > 0 {
			t.Errorf("put right or removed of what nobody changed: %+v: %+v", got, got.Last)
		}
	}
}

// tapird is killed at any moment of its work, again and again: in the end all that is dead is removed, and what lives is right.
func TestTapirdIsKilledAtWork(t *testing.T) {
	requireNode(t)
	testnode.Require(t, "btf")
	lives := add(t, `"ipMasq": true,`)
	const many = 30
	for range many {
		p := newPod(t, `"ipMasq": true,`)
		must(t, p.cni("ADD"))
		p.vanish()
	}
	run := func(d time.Duration) string {
		var log bytes.Buffer
		c := exec.Command(filepath.Join(os.Getenv(testnode.BinDirEnv), "tapird"), "--grace", "1s", "--metrics-bind-address", "", "--tuner", "off")
		c.Stderr = &log
		must(t, c.Start())
		time.Sleep(d)
		must(t, c.Process.Kill())
		_ = c.Wait()
		return log.String()
	}
	var log string
	kills := 0
	for until := time.Now().Add(patience); countRecords(t) > 1 && time.Now().Before(until); kills++ {
		command(t, "ip", "route", "flush", "dev", lives.recorded().Host.Name)
		log = run(1200*time.Millisecond + rand.N(500*time.Millisecond)) // about when the grace time of all ends
	}
	if n := countRecords(t); n != 1 {
		t.Fatalf("%d are left after %d kills: %s", n-1, kills, log)
	}
	t.Logf("killed %d times", kills)
	for range 10 { // while it puts right
		command(t, "ip", "route", "flush", "dev", lives.recorded().Host.Name)
		run(300*time.Millisecond + rand.N(300*time.Millisecond))
	}
	// With the capabilities that it keeps it puts all of this right.
	command(t, "nft", "flush", "ruleset")
	sysctl(t, "net/ipv4/ip_forward", "0")
	lives.in(func() {
		command(t, "tc", "qdisc", "del", "dev", "tap-eth0", "clsact")
		command(t, "tc", "qdisc", "replace", "dev", "tap-eth0", "root", "pfifo")
	})
	log = run(4 * time.Second)
	if v, err := os.ReadFile("/proc/sys/net/ipv4/ip_forward"); err != nil || v[0] != '1' {
		t.Errorf("want the node to forward, got %q, %v", v, err)
	}
	if wrong := lives.wrong(); len(wrong) > 0 {
		t.Errorf("%q: %s", wrong, log)
	}
	if err := lives.cni("CHECK"); err != nil {
		t.Error(err)
	}
	must(t, os.RemoveAll("/run/tapir/tapird.sock"))
}
