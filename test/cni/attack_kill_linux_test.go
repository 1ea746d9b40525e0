package cni_test

import (
	"bytes"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The next ADD of the same attachment takes away what a killed one left, without a DEL between them.
func TestAddAfterKilledAdd(t *testing.T) {
	n := newNode(t)
	c := conf(object{"ipMasq": true, "queues": 2, "ipam": ranges("10.9.0.0/16", "fd00:9::/64")})
	p := n.pod("again", c)
	start := time.Now()
	p.add()
	takes := time.Since(start)
	p.works("DEL", nil)
	pending := 0
	for i := range 100 {
		cmd := exec.Command(filepath.Join(os.Getenv(binDirEnv), "tapir"))
		cmd.Env, cmd.Stdin = p.env("ADD"), bytes.NewReader(marshal(t, c))
		n.start(cmd)
		if i%2 == 0 {
			time.Sleep(rand.N(takes))
		} else {
			n.waitForPending(4 * takes)
		}
		kill(cmd)
		record := strings.Join(n.stateLines(), "\n")
		if strings.Contains(record, "(ready)") {
			p.fails("ADD", codeBusy, nil)
		} else {
			r := p.add()
			p.works("CHECK", nil)
			if strings.Contains(record, "(pending)") {
				if pending++; pending == 1 {
					boot(p, r).wantPing(nodeIP4, nodeIP6)
				}
			}
		}
		p.works("DEL", nil)
		if t.Failed() || pending == 8 {
			break
		}
	}
	if pending < 3 {
		t.Errorf("only %d kills met an ADD with a pending record: the test shows nothing", pending)
	}
}

// waitForPending returns as soon as the state has a pending record, or after the time in which an ADD is long over.
func (n *node) waitForPending(atMost time.Duration) {
	for end := time.Now().Add(atMost); time.Now().Before(end); {
		if strings.Contains(strings.Join(n.stateLines(), "\n"), "(pending)") {
			return
		}
	}
}
