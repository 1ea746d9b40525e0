package watch_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/tapir-cni/tapir/agent/watch"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/vishvananda/netlink"
)

// wantWords waits for the last of the words, then wants all of them. Link changes of the veth are left out: they depend on who
// was faster.
func (w *watched) wantWords(p *pod, from int, want ...string) {
	w.t.Helper()
	var got []string
	defer func() {
		if w.t.Failed() {
			w.t.Logf("got %q", got)
		}
	}()
	testnode.Eventually(w.t, patience, func() error {
		list, _ := w.of(p, from)
		got = slices.DeleteFunc(kinds(list), func(s string) bool { return s == "pod link changed" || s == "host link changed" })
		if len(got) < len(want) {
			return fmt.Errorf("%q: not yet %q", got, want)
		}
		return nil
	})
	if diff := cmp.Diff(want, got); diff != "" {
		w.t.Errorf("events of %s (-want +got):\n%s", p.id, diff)
	}
}

func TestAnAttachmentComesLivesAndGoes(t *testing.T) {
	requireNode(t)
	w := start(t, watch.Config{})
	p := add(t, "")
	w.wantPicture(p, func(a *watch.Attachment) error {
		if !a.Ready() || a.TAP == nil || a.Pod == nil || a.Host == nil || a.Netns != watch.NetnsThere {
			return fmt.Errorf("want it ready with three devices, got %+v", a)
		}
		if !a.TAP.Up || a.TAP.Carrier || a.TAP.MTU != 1400 || a.TAP.TxQueueLen != 1000 || a.Pod.Name != "eth0" || !a.Host.Up || a.TAP.Kind != "tun" {
			return fmt.Errorf("devices: tap %+v, pod %+v, host %+v", a.TAP, a.Pod, a.Host)
		}
		return nil
	})
	m := w.mark()
	q := p.open(1)
	w.wantPicture(p, attached(1))
	closeQueues(t, q)
	w.wantPicture(p, attached(0))
	p.in(func(l netlink.Link) {
		if err := netlink.LinkSetTxQLen(l, 500); err != nil {
			t.Fatal(err)
		}
	})
	w.wantPicture(p, func(a *watch.Attachment) error {
		if a.TAP.TxQueueLen != 500 {
			return fmt.Errorf("want txqueuelen 500, got %d", a.TAP.TxQueueLen)
		}
		return nil
	})
	p.del()
	testnode.Eventually(t, patience, func() error {
		if list, _ := w.of(p, m); !slices.Contains(kinds(list), "removed") {
			return errors.New("it is still there")
		}
		return nil
	})
	list, _ := w.of(p, m)
	words := kinds(list)
	if want := []string{"queue attached 1", "queue detached 0", "tap link changed"}; !slices.Equal(words[:3], want) {
		t.Errorf("want %q first, got %q", want, words)
	}
	if n := len(w.Snapshot()); n != 0 {
		t.Errorf("want an empty picture, got %d attachments", n)
	}
}

// A VMM that restarts in no time closes its queue and opens it again: both are told, whether one looked in between or not.
func TestAQuickRestartIsTold(t *testing.T) {
	requireNode(t)
	w := start(t, watch.Config{})
	p := add(t, "")
	w.wantPicture(p, ready)
	q := p.open(1)
	w.wantPicture(p, attached(1))
	for range 20 {
		m := w.mark()
		closeQueues(t, q)
		q = p.open(1)
		w.wantWords(p, m, "queue detached 0", "queue attached 1")
	}
	m := w.mark()
	time.Sleep(1500 * time.Millisecond) // the carrier's own messages come up to a second later, and are no news
	w.wantWords(p, m)
	closeQueues(t, q)
}

func TestQueuesOfAMultiQueueTAPAreCounted(t *testing.T) {
	requireNode(t)
	w := start(t, watch.Config{})
	p := add(t, `"queues": 4,`)
	w.wantPicture(p, ready)
	m := w.mark()
	first := p.open(2)
	second := p.open(1)
	w.wantWords(p, m, "queue attached 1", "queue attached 2", "queue attached 3")
	m = w.mark()
	closeQueues(t, second)
	second = p.open(1)
	w.wantWords(p, m, "queue detached 2", "queue attached 3")
	m = w.mark()
	closeQueues(t, first)
	closeQueues(t, second)
	w.wantWords(p, m, "queue detached 2", "queue detached 1", "queue detached 0")
}

// Who subscribes late, or whose watcher starts late, learns the same.
func TestWhatIsThereIsToldAtFirst(t *testing.T) {
	requireNode(t)
	p := add(t, "")
	q := p.open(1)
	defer closeQueues(t, q)
	w := start(t, watch.Config{})
	w.wantWords(p, 0, "added")
	late := &watched{t: t, Watcher: w.Watcher}
	defer late.Subscribe(late.note)()
	late.wantWords(p, 0, "added")
	list, _ := late.of(p, 0)
	if a := list[0].After; a.Attached() != 1 || !a.Ready() {
		t.Errorf("want it ready with a queue, got %d queues, ready %t", a.Attached(), a.Ready())
	}
}
