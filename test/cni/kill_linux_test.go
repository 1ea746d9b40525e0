package cni_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/internal/testnode"
)

func TestDelWhileAddRuns(t *testing.T) {
	n := newNode(t)
	c := conf(object{"ipMasq": true, "ipam": ranges("10.9.0.0/16", "fd00:9::/64")})
	n.warm(c)
	p := n.pod("c1", c)
	before := n.snapshot(p.netns)
	for i := range 30 {
		var add, del answer
		var wg sync.WaitGroup
		wg.Go(func() { add = p.call("ADD", nil) })
		time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
		wg.Go(func() { del = p.call("DEL", nil) })
		wg.Wait()
		if del.code != 0 || add.code != 0 {
			t.Errorf("round %d: ADD: %s\nDEL: %s", i, add, del)
		}
		p.works("DEL", nil) // where the first DEL came before the ADD
		wantSame(t, fmt.Sprint("round ", i), before, n.snapshot(p.netns))
	}
	noTemp(t)
}

// A killed ADD can end anywhere. DEL and the clean-up must find all that it had made so far, and nothing of others.
func TestKilledAddIsCleanedUp(t *testing.T) {
	n := newNode(t)
	c := conf(object{"ipMasq": true, "queues": 2, "xdp": object{"mode": "auto"}, "ipam": ranges("10.9.0.0/16", "fd00:9::/64")})
	bystander := n.pod("bystander", c)
	r := bystander.add()
	timed := n.pod("timed", c)
	takes := time.Hour
	for range 3 { // on a busy machine one may take so long that no kill would come in time
		start := time.Now()
		timed.add()
		takes = min(takes, time.Since(start))
		timed.works("DEL", nil)
	}
	before := n.snapshot(bystander.netns)
	var pending, killed int
	for i := range 50 {
		p := n.pod(fmt.Sprint("killed", i), c)
		cmd := exec.Command(filepath.Join(os.Getenv(binDirEnv), "tapir"))
		cmd.Env, cmd.Stdin = p.env("ADD"), bytes.NewReader(marshal(t, c))
		n.start(cmd)
		time.Sleep(rand.N(takes * 5 / 4))
		kill(cmd)
		if cmd.ProcessState.ExitCode() != 0 {
			killed++
		}
		record := ""
		for _, line := range n.stateLines() {
			if strings.HasPrefix(line, "attachment pods/killed") {
				record = line
			}
		}
		if strings.Contains(record, "(pending)") {
			pending++
		}
		// One that is recorded as ready is no leftover to the clean-up: its sandbox lives.
		if i%2 == 0 || strings.Contains(record, "(ready)") {
			p.works("DEL", nil)
		}
		// Killed between the reservation of its ifindexes and the record of it, an ADD leaves map entries of which only
		// the clean-up can know.
		if record == "" || i%2 == 1 {
			if out := n.ctl("cleanup", "--yes"); out.code != 0 {
				t.Errorf("clean-up of a killed ADD: %s", out)
			}
		}
		wantSame(t, fmt.Sprint("killed ADD ", i, " with the record ", record), before, n.snapshot(bystander.netns))
		testnode.In(t, p.netns, func() {
			if links := allLinks(t); len(links) != 1 {
				t.Errorf("killed ADD %d: the sandbox has %d links, want lo alone", i, len(links))
			}
		})
		if i%10 == 9 { // nothing is in the way
			p.add()
			p.works("DEL", nil)
		}
		if t.Failed() {
			return
		}
	}
	t.Logf("%d of 50 did not finish, %d left a pending record", killed, pending)
	if pending < 5 {
		t.Errorf("only %d of 50 kills met an ADD with a pending record: the test shows nothing", pending)
	}
	bystander.works("CHECK", nil)
	g := boot(bystander, r)
	g.wantPing(nodeIP4, nodeIP6)
}
