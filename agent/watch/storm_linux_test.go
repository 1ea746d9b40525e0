package watch_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/agent/watch"
	"github.com/tapir-cni/tapir/internal/links"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/tap"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// model follows events as a subscriber would, and knows the picture by them alone.
type model struct {
	mu    sync.Mutex
	known map[watch.ID]*watch.Attachment
	wrong []string
}

func (m *model) note(e watch.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	id := e.After.ID
	if was := m.known[id]; was == nil != (e.Kind == watch.Added) {
		m.wrong = append(m.wrong, fmt.Sprintf("%s of %s, known: %t", e.Kind, id, was != nil))
	}
	if m.known[id] = e.After; e.Kind == watch.Removed {
		delete(m.known, id)
	}
}

// check holds the model against the picture.
func (m *model) check(w *watch.Watcher) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := w.Snapshot()
	if len(m.wrong) > 0 || len(all) != len(m.known) {
		return fmt.Errorf("%d attachments, %d by events, wrong: %q", len(all), len(m.known), m.wrong)
	}
	for _, a := range all {
		k := m.known[a.ID]
		if k == nil || k.Attached() != a.Attached() || k.Netns != a.Netns || (k.TAP == nil) != (a.TAP == nil) || k.Record.Status != a.Record.Status {
			return fmt.Errorf("%s: %+v, by events %+v", a.ID, a, k)
		}
	}
	return nil
}

// Attachments come, are opened and go, by real ADDs and DELs, several at once: in the end events, picture and kernel agree. The smaller watcher's
// buffer holds a few messages, so that it has to begin anew again and again.
func TestEventsAndPictureAgreeInAStorm(t *testing.T) {
	requireNode(t)
	const workers, rounds, stay = 4, 12, 3
	watchers := map[string]*watched{"large": start(t, watch.Config{}), "small": start(t, watch.Config{Buffer: 1, ReadEvery: time.Millisecond})}
	models := map[string]*model{}
	for name, w := range watchers {
		m := &model{known: map[watch.ID]*watch.Attachment{}}
		w.Subscribe(m.note)
		models[name] = m
	}
	var mu sync.Mutex
	var open []*pod
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for i := range rounds {
				p := newPod(t, `"queues": 2,`)
				if err := p.cni("ADD"); err != nil {
					t.Error(err)
					return
				}
				q := p.open(2)
				if i >= rounds-stay {
					mu.Lock()
					open = append(open, p)
					mu.Unlock()
					t.Cleanup(func() { _ = q.Close(); p.del() })
					continue
				}
				closeQueues(t, q)
				if err := p.cni("DEL"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	for name, w := range watchers {
		testnode.Eventually(t, patience, func() error {
			if n := len(w.Snapshot()); n != workers*stay {
				return fmt.Errorf("%s: want %d attachments, got %d", name, workers*stay, n)
			}
			for _, p := range open {
				if a, ok := w.Attachment(p.watchID()); !ok || ready(a) != nil || a.Attached() != 2 {
					return fmt.Errorf("%s: want %s ready with two queues, got %+v", name, p.id, a)
				}
			}
			return models[name].check(w.Watcher)
		})
		t.Logf("%s: %+v", name, w.Stats())
	}
	if n := watchers["small"].Stats().Overruns; n == 0 {
		t.Error("want the small buffer to overrun, and it did not")
	}
}

// A sandbox that ends without a DEL takes its devices along. The record stays.
func TestANetnsThatIsDeleted(t *testing.T) {
	requireNode(t)
	w := start(t, watch.Config{})
	p := add(t, "")
	w.wantPicture(p, ready)
	m := w.mark()
	if err := errors.Join(unix.Unmount(p.netns, unix.MNT_DETACH), os.Remove(p.netns)); err != nil {
		t.Fatal(err)
	}
	w.wantPicture(p, func(a *watch.Attachment) error {
		if a.Netns != watch.NetnsLost || a.TAP != nil || a.Pod != nil || a.Host != nil || a.Why == nil {
			return fmt.Errorf("want it without namespace and devices, got %+v", a)
		}
		return nil
	})
	list, _ := w.of(p, m)
	if got := kinds(list); len(got) == 0 || got[0] != "netns gone" {
		t.Errorf("want the namespace's end first, got %q", got)
	}
	// A watcher that starts later learns of it by the path.
	late := start(t, watch.Config{})
	late.wantPicture(p, func(a *watch.Attachment) error {
		if a.Netns != watch.NetnsLost {
			return fmt.Errorf("want the namespace lost, got %s", a.Netns)
		}
		return nil
	})
}

// A TAP in the node's own namespace is watched there, and stays when the sandbox goes.
func TestATAPOnTheHost(t *testing.T) {
	requireNode(t)
	w := start(t, watch.Config{})
	p := add(t, `"placement": "host",`)
	w.wantPicture(p, func(a *watch.Attachment) error {
		if !a.Ready() || a.TAP == nil || a.Pod != nil || a.Host != nil || a.Netns != watch.NetnsThere || a.TAP.NSID != links.Here {
			return fmt.Errorf("want it ready with a TAP here, got %+v", a)
		}
		return nil
	})
	a, _ := w.Attachment(p.watchID())
	q, err := tap.OpenQueues(tap.QueueOptions{Name: a.TAP.Name, Count: 1, NAPI: true})
	if err != nil {
		t.Fatal(err)
	}
	defer closeQueues(t, q)
	w.wantPicture(p, attached(1))
	if err := errors.Join(unix.Unmount(p.netns, unix.MNT_DETACH), os.Remove(p.netns)); err != nil {
		t.Fatal(err)
	}
	w.wantPicture(p, func(a *watch.Attachment) error {
		if a.Netns != watch.NetnsLost {
			return fmt.Errorf("want the sandbox lost, got %s", a.Netns)
		}
		return attached(1)(a)
	})
}

// A watcher that was run again learns what happened meanwhile, though no record changed.
func TestARunTakesOverFromTheLast(t *testing.T) {
	requireNode(t)
	w := start(t, watch.Config{})
	p := add(t, "")
	w.wantPicture(p, ready)
	w.stop()
	q := p.open(1)
	m := w.mark()
	w.stop = run(t, w.Watcher)
	w.wantWords(p, m, "queue attached 1")
	w.stop()
	closeQueues(t, q)
	q = p.open(1)
	m = w.mark()
	w.stop = run(t, w.Watcher)
	w.wantWords(p, m, "queue detached 0", "queue attached 1")
	closeQueues(t, q)
}

// A namespace that nobody has given an nsid, such as that of a pod whose interface is another plugin's, is given one and listened to.
func TestANetnsWithoutNSID(t *testing.T) {
	requireNode(t)
	w := start(t, watch.Config{})
	a := state.Attachment{
		Key: state.Key{Network: "chain", ContainerID: "alone", IfName: "eth0"}, Status: state.Ready, Netns: testnode.NewNetns(t),
		Chained: true, Queues: 1, TAP: state.Device{Name: "tap-eth0", Index: 1<<20 + 1},
	}
	p := &pod{t: t, netns: a.Netns, id: "alone"}
	makeTAP(t, a)
	record(t, func(tx *state.Tx) error { return tx.Put(a) })
	id := watch.ID{Dir: state.DefaultDir, Key: a.Key}
	want := func(f func(*watch.Attachment) error) {
		t.Helper()
		testnode.Eventually(t, patience, func() error {
			got, ok := w.Attachment(id)
			if !ok {
				return errors.New("it is not there")
			}
			return f(got)
		})
	}
	want(attached(0))
	q := p.open(1)
	want(attached(1))
	closeQueues(t, q)
	want(attached(0))
	record(t, func(tx *state.Tx) error { return tx.Delete(a.Key) })
	testnode.Eventually(t, patience, func() error {
		if _, ok := w.Attachment(id); ok {
			return errors.New("it is still there")
		}
		return nil
	})
}

// What the state folder goes through is survived: it is made late, filled with rubbish, replaced, taken away and made again.
func TestTheStateFolderComesGoesAndBreaks(t *testing.T) {
	requireNode(t)
	w := start(t, watch.Config{}) // there is no folder yet
	p := add(t, "")
	w.wantPicture(p, ready)
	db := filepath.Join(state.DefaultDir, "state.db")
	if err := os.WriteFile(db, []byte(strings.Repeat("rubbish ", 10000)), 0o600); err != nil {
		t.Fatal(err)
	}
	// It is rebuilt from the kernel, which does not know where the sandbox is; its namespace is found by the veth.
	w.wantPicture(p, func(a *watch.Attachment) error {
		if !a.Record.Rebuilt || a.Netns != watch.NetnsThere || a.Pod == nil || a.Host == nil {
			return fmt.Errorf("want it rebuilt, got %+v", a)
		}
		return nil
	})
	q := p.open(1)
	defer closeQueues(t, q)
	if got := w.log.String(); !strings.Contains(got, "rebuilt") {
		t.Errorf("want a word about it, got %s", got)
	}
	other := t.TempDir()
	for range 3 {
		if err := os.Rename(db, filepath.Join(other, "state.db")); err == nil {
			t.Fatal("want another file system")
		}
		data, err := os.ReadFile(db)
		if err != nil {
			t.Fatal(err)
		}
		fresh := db + ".copy"
		if err := errors.Join(os.WriteFile(fresh, data, 0o600), os.Rename(fresh, db)); err != nil {
			t.Fatal(err)
		}
		w.wantPicture(p, func(*watch.Attachment) error { return nil })
	}
	readings := w.Stats().Readings
	if err := os.RemoveAll(state.DefaultDir); err != nil {
		t.Fatal(err)
	}
	testnode.Eventually(t, patience, func() error { // the kernel still has the devices: their record is made anew
		if n := w.Stats().Readings; n <= readings {
			return fmt.Errorf("want more than %d readings, got %d", readings, n)
		}
		if _, err := os.Stat(db); err != nil {
			return err
		}
		return nil
	})
	second := add(t, "")
	w.wantPicture(second, ready)
}

// Run ends with nothing left that runs. (Of descriptors the whole test run is a test: package testnode counts them.)
func TestRunLeavesNothing(t *testing.T) {
	requireNode(t)
	p := add(t, "")
	before := runtime.NumGoroutine()
	w := watch.New(watch.Config{})
	for range 3 {
		stop := run(t, w)
		testnode.Eventually(t, patience, func() error { return has(w, p) })
		stop()
	}
	testnode.Eventually(t, patience, func() error {
		if now := runtime.NumGoroutine(); now > before {
			return fmt.Errorf("want %d goroutines, got %d", before, now)
		}
		return nil
	})
}

func has(w *watch.Watcher, p *pod) error {
	if a, ok := w.Attachment(p.watchID()); !ok || a.TAP == nil {
		return errors.New("it is not there")
	}
	return nil
}

// record runs f in a transaction of the state.
func record(t *testing.T, f func(*state.Tx) error) {
	t.Helper()
	if err := state.New(state.Config{}).Update(context.Background(), f); err != nil {
		t.Fatal(err)
	}
}

// makeTAP makes the TAP of a record.
func makeTAP(t *testing.T, a state.Attachment) {
	t.Helper()
	testnode.In(t, a.Netns, func() {
		createTAP(t, a)
		l, err := netlink.LinkByName(a.TAP.Name)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(netlink.LinkSetAlias(l, a.Alias()), netlink.LinkSetUp(l)); err != nil {
			t.Fatal(err)
		}
	})
}
