package install_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/tapir-cni/tapir/agent/install"
	"github.com/tapir-cni/tapir/internal/output"
	"github.com/tapir-cni/tapir/internal/testnode"
)

// told are ranges that a test tells.
type told struct {
	mu      sync.Mutex
	now     []netip.Prefix
	changed chan struct{}
}

func (r *told) Ranges() []netip.Prefix {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

func (r *told) Changed() <-chan struct{} { return r.changed }

func (r *told) tell(ranges ...string) {
	r.mu.Lock()
	r.now = nil
	for _, one := range ranges {
		r.now = append(r.now, netip.MustParsePrefix(one))
	}
	r.mu.Unlock()
	r.changed <- struct{}{}
}

// run installs with told ranges until the test's end, or until stop.
func (n *node) run() (r *told, in *install.Installer, stop func()) {
	n.t.Helper()
	r = &told{changed: make(chan struct{}, 1)}
	log := &output.Buffer{}
	in = install.New(install.Config{
		Options: install.Options{From: n.from, CNIBinDir: n.bin, CNIConfDir: n.conf, Template: n.template()}, Ranges: r, Logger: slog.New(slog.NewTextHandler(log, nil)),
	})
	ctx, cancel := context.WithCancel(n.t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = in.Run(ctx) }) // it ends with the context's error
	stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		if n.t.Failed() {
			n.t.Log(log)
		}
	})
	n.t.Cleanup(stop)
	return r, in, stop
}

// ipam is what the installed configuration gives the pods' addresses from.
func (n *node) ipam() (string, error) {
	data, err := os.ReadFile(n.own())
	if err != nil {
		return "", err
	}
	var list struct{ Plugins []struct{ IPAM object } }
	if err := json.Unmarshal(data, &list); err != nil {
		return "", err
	}
	return fmt.Sprint(list.Plugins[0].IPAM["ranges"], list.Plugins[0].IPAM["routes"]), nil
}

func (n *node) wantIPAM(want string) {
	n.t.Helper()
	testnode.Eventually(n.t, patience, func() error {
		got, err := n.ipam()
		if err == nil && got != want {
			err = fmt.Errorf("want %s, got %s", want, got)
		}
		return err
	})
}

func TestRangesOfTheNodeComeIntoTheConfiguration(t *testing.T) {
	n := newNode(t, `{"cniVersion": "1.1.0", "name": "pods", "plugins": [{"type": "tapir", "ipam": {"type": "tapir-ipam"}}]}`, nil)
	r, in, stop := n.run()
	testnode.Eventually(t, patience, func() error {
		if err := in.Ready(); err == nil || !strings.Contains(err.Error(), "the node has no ranges yet") {
			return fmt.Errorf("want to wait for ranges, got %v", err)
		}
		return nil
	})
	n.absent(n.own())
	r.tell("10.9.0.0/24", "10.9.1.0/24", "fd00:9::/64")
	const three = "[[map[subnet:10.9.0.0/24]] [map[subnet:10.9.1.0/24]] [map[subnet:fd00:9::/64]]] [map[dst:0.0.0.0/0] map[dst:::/0]]"
	n.wantIPAM(three)
	p := n.pod()
	mustDo(t, p.cni("ADD"))
	mustDo(t, p.cni("DEL"))
	testnode.Eventually(t, patience, in.Ready)
	stop()

	// The next tapird does not know them yet: what is there counts, and comes back where it is edited.
	r, in, _ = n.run()
	testnode.Eventually(t, patience, in.Ready)
	n.wantIPAM(three)
	mustDo(t, os.WriteFile(n.own(), []byte(strings.Replace(string(read(t, n.own())), `"plugins"`, `"disableGC": true, "plugins"`, 1)), 0o644))
	testnode.Eventually(t, patience, func() error {
		if text := string(read(t, n.own())); strings.Contains(text, "disableGC") {
			return fmt.Errorf("want it as it was, got %s", text)
		}
		return nil
	})
	n.wantIPAM(three)
	r.tell("fd00:8::/64")
	n.wantIPAM("[[map[subnet:fd00:8::/64]]] [map[dst:::/0]]")
	// A template with ranges of its own has those.
	n.writeTemplate(template)
	n.wantIPAM("[[map[subnet:10.9.0.0/16]]] <nil>")
}
