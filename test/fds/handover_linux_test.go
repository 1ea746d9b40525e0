package fds_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/tapir-cni/tapir/internal/testnode"
	"golang.org/x/sys/unix"
)

// Root, the owner with its token, and a member of the group get as many queues as asked, each with NAPI, and tapird keeps none.
func TestQueuesAreHandedOver(t *testing.T) {
	n := newNode(t)
	d := n.tapird()
	ask(t, asking{Request: n.add(`"queues": 1`).request(0)}).end() // what the runtime opens once, it has now
	before := d.idleFDs()
	for _, tt := range []struct {
		name string
		keys string
		asking
	}{
		{"root", `"owner": 4711`, asking{}},
		{"owner", `"owner": 4711`, asking{UID: 4711, GID: 4711}},
		{"group", `"group": 4712`, asking{UID: 4713, GID: 4713, Groups: []int{4712}}},
		{"owner in the group", `"owner": 4711, "group": 4712`, asking{UID: 4711, GID: 4712}},
	} {
		for _, queues := range []int{1, 2, 4} {
			t.Run(fmt.Sprint(tt.name, " ", queues), func(t *testing.T) {
				pod := n.add(fmt.Sprintf(`"queues": %d, %s`, queues, tt.keys))
				tt.Request = pod.request(0)
				p := ask(t, tt.asking)
				if len(p.FDs) != queues || p.Queues != queues || !p.NAPI || p.Name != "tap-eth0" || p.Netns != pod.netns || p.MTU != 1400 || p.MAC == "" || p.VnetHdrSize < 10 {
					t.Fatalf("want %d queues, described, got %+v", queues, p.answer)
				}
				if multi := p.Flags&unix.IFF_MULTI_QUEUE != 0; multi != (queues > 1) {
					t.Errorf("flags %#x of %d queues", p.Flags, queues)
				}
				wantQueues(t, p.pid, queues)
				pod.wantUp()
				p.end()
				wantNoQueues(t)
			})
		}
	}
	d.wantFDs(before)
	d.wantHome()
}

// The capabilities that the systemd unit leaves to tapird are enough to hand over queues, and each is wanted for that but the ones by which
// it hears of links and sets NAPI's threads (agent's own tests have them).
func TestCapabilitiesOfTheUnit(t *testing.T) {
	unit, err := os.ReadFile("../../deploy/systemd/tapird.service")
	if err != nil {
		t.Fatal(err)
	}
	var caps []string
	for line := range strings.Lines(string(unit)) {
		if list, ok := strings.CutPrefix(line, "CapabilityBoundingSet="); ok {
			caps = strings.Fields(strings.ToLower(strings.ReplaceAll(list, "CAP_", "+")))
			caps = slices.DeleteFunc(caps, func(c string) bool { return c == "+net_broadcast" || c == "+sys_nice" })
		}
	}
	n := newNode(t)
	owned := n.add(`"queues": 256, "txQueueLen": 16, "owner": 4711`)
	for i := -1; i < len(caps); i++ {
		bounds, without := slices.Clone(caps), "none"
		if i >= 0 {
			bounds, without = slices.Delete(bounds, i, i+1), caps[i]
		}
		if err := os.RemoveAll("/run/tapir/tokens"); err != nil {
			t.Fatal(err)
		}
		d := n.run("setpriv", "--bounding-set=-all,"+strings.Join(bounds, ","), "--no-new-privs", bin("tapird"))
		p := ask(t, asking{UID: 4711, GID: 4711, Request: owned.request(0)})
		if got := len(p.FDs) == 256; got != (i < 0) {
			t.Errorf("without %s: %+v", without, p.answer)
		}
		p.end()
		d.signal(unix.SIGTERM)
	}
}

// More descriptors than one message takes.
func TestAllQueuesOfTheLargestTAP(t *testing.T) {
	n := newNode(t)
	d := n.tapird()
	pod := n.add(`"queues": 256, "txQueueLen": 16`)
	ask(t, asking{Request: pod.request(1)}).end()
	before := d.idleFDs()
	p := ask(t, asking{Request: pod.request(0)})
	if len(p.FDs) != 256 {
		t.Fatalf("want 256 descriptors, got %+v", p.answer)
	}
	wantQueues(t, p.pid, 256)
	d.wantFDs(before)
}

// A token is its owner's to read, outlives tapird, and goes with its attachment.
func TestToken(t *testing.T) {
	n := newNode(t)
	d := n.tapird()
	stays, goes := n.add(`"queues": 1, "owner": 4711`), n.add(`"queues": 1, "owner": 4711`)
	owner := asking{UID: 4711, GID: 4711, Request: stays.request(0)}
	ask(t, owner).end()
	first := tokens(t)
	if len(first) != 1 {
		t.Fatalf("want one token, got %v", first)
	}
	for path, text := range first {
		st, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if uid := st.Sys().(*syscall.Stat_t).Uid; st.Mode() != 0o400 || uid != 4711 || len(text) < 20 {
			t.Errorf("token: mode %s of uid %d, %d bytes", st.Mode(), uid, len(text))
		}
	}
	owner.Request = goes.request(0)
	ask(t, owner).end()
	if all := tokens(t); len(all) != 2 {
		t.Fatalf("want two tokens, got %v", all)
	}
	goes.del()
	d.wantSwept(first) // while it runs, too
	left := n.add(`"queues": 1, "owner": 4711`)
	owner.Request = left.request(0)
	ask(t, owner).end()
	d.signal(unix.SIGTERM)
	left.del()
	n.tapird().wantSwept(first) // at its start
	owner.Request = stays.request(0)
	if p := ask(t, owner); len(p.FDs) != 1 {
		t.Errorf("after the restart: %+v", p.answer)
	}
}

// wantSwept waits until just these tokens are left.
func (d *daemon) wantSwept(want map[string]string) {
	d.t.Helper()
	testnode.Eventually(d.t, patience, func() error {
		got := tokens(d.t)
		for path, text := range want {
			if got[path] != text {
				d.t.Fatalf("a token of an attachment that lives changed: %v, was %v", got, want)
			}
		}
		if len(got) != len(want) {
			return fmt.Errorf("want the tokens %v, got %v", want, got)
		}
		return nil
	})
}

// tokens are the files and what they hold.
func tokens(t testing.TB) map[string]string {
	t.Helper()
	paths, err := filepath.Glob("/run/tapir/tokens/*")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, path := range paths {
		if text, err := os.ReadFile(path); err == nil {
			all[path] = string(text)
		}
	}
	return all
}
