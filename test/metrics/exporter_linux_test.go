package metrics_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/tapir-cni/tapir/agent/measure"
	"github.com/tapir-cni/tapir/agent/metrics"
	"github.com/tapir-cni/tapir/agent/watch"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/tap"
	"github.com/vishvananda/netlink"
)

// known is what the exporter gives: the values of each label of each series' name.
type known map[string]map[string]map[string]bool

func (k known) add(name string, labels map[string]string) {
	if k[name] == nil {
		k[name] = map[string]map[string]bool{}
	}
	for l, v := range labels {
		if k[name][l] == nil {
			k[name][l] = map[string]bool{}
		}
		k[name][l][v] = true
	}
}

// told is what the parts would tell that do not run here.
type told struct{}

func (told) Decisions() []metrics.Decisions {
	return []metrics.Decisions{{Kind: "rule", To: "small", Result: "failed", N: 1}}
}
func (told) LostByResize() uint64 { return 0 }
func (told) Findings() []metrics.Findings {
	return []metrics.Findings{{Kind: "stray-dan", Found: 1, Failed: 1, Open: 1}}
}

// export makes attachments by ADD, has calls fail, and gathers.
func export(t *testing.T) known {
	t.Helper()
	testnode.Require(t, "root", "tun", "bpf", "btf")
	t.Cleanup(func() {
		for _, dir := range []string{"/run/tapir", "/sys/fs/bpf/tapir"} {
			if err := os.RemoveAll(dir); err != nil {
				t.Error(err)
			}
		}
	})
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "up0"
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "up1"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if link, err := netlink.LinkByName("up0"); err != nil || netlink.LinkDel(link) != nil {
			t.Error("remove the uplink", err)
		}
	})
	first, second := testnode.NewNetns(t), testnode.NewNetns(t)
	call(t, "ADD", "one", first, true)
	t.Cleanup(func() { call(t, "DEL", "one", first, true) })
	call(t, "ADD", "two", second, false) // the range has one address
	q, err := tap.OpenQueues(tap.QueueOptions{Netns: first, Name: "tap-eth0", Count: 1, NAPI: true})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close() //nolint:errcheck // of the test's end

	w := watch.New(watch.Config{})
	s := measure.New(measure.Config{Watch: w})
	ctx, cancel := context.WithCancel(context.Background())
	var parts sync.WaitGroup
	for _, run := range []func(context.Context) error{w.Run, s.Run} {
		parts.Go(func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	defer parts.Wait()
	defer cancel()
	exporter := metrics.New(metrics.Config{Watch: w, Measure: s, Tuner: told{}, Reconciler: told{}, Uplinks: []string{"up0"},
		Parts: func() []metrics.Part { return []metrics.Part{{Name: "watch", Running: true}} }})
	list, done, err := exporter.Gather()
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	all := known{}
	for _, f := range list {
		for _, m := range f.Metric {
			labels := map[string]string{"instance": "node:10177", "job": "tapird"} // Prometheus gives each target these
			for _, l := range m.Label {
				labels[l.GetName()] = l.GetValue()
			}
			if m.Histogram == nil {
				all.add(f.GetName(), labels)
				continue
			}
			all.add(f.GetName()+"_count", labels)
			all.add(f.GetName()+"_sum", labels)
			labels["le"] = "+Inf"
			all.add(f.GetName()+"_bucket", labels)
		}
	}
	return all
}

func call(t *testing.T, verb, id, netns string, want bool) {
	t.Helper()
	cmd := exec.Command(filepath.Join(os.Getenv(testnode.BinDirEnv), "tapir"))
	cmd.Env = []string{"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + id, "CNI_NETNS=" + netns, "CNI_IFNAME=eth0", "CNI_PATH=/nonexistent",
		"CNI_ARGS=K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web"}
	cmd.Stdin = strings.NewReader(`{"cniVersion": "1.1.0", "name": "pods", "type": "tapir", "mtu": 1400, "xdp": {"mode": "auto"},
		"ipam": {"type": "tapir-ipam", "ranges": [[{"subnet": "10.9.0.0/24", "rangeStart": "10.9.0.9", "rangeEnd": "10.9.0.9"}]]}}`)
	if out, err := cmd.CombinedOutput(); (err == nil) != want {
		t.Fatalf("%s of %s: want success: %t, got %v: %s", verb, id, want, err, out)
	}
}

var docRow = regexp.MustCompile("(?m)^\\| `(tapir_[a-z0-9_]+)` \\| [a-z]+ \\| [^|]* \\| ([^|]*) \\|")

// documented adds what no driver of a virtual device gives, by docs/metrics.md, whose table is the exporter's own.
func (k known) documented(t *testing.T, prefix string) {
	t.Helper()
	text, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range docRow.FindAllStringSubmatch(string(text), -1) {
		if !strings.HasPrefix(row[1], prefix) || k[row[1]] != nil {
			continue
		}
		labels := map[string]string{"instance": "", "device": ""}
		for _, l := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(row[2], -1) {
			labels[l[1]] = ""
		}
		k.add(row[1], labels)
	}
	if k["tapir_uplink_queue_cpu"]["polled_by"] == nil {
		t.Fatal(fmt.Errorf("docs/metrics.md has no tapir_uplink_queue_cpu"))
	}
}
