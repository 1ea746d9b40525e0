package tuner

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/vishvananda/netlink"
)

func pointer(n int) *int { return &n }

// uplink makes a device of four queues, without hardware, in the node.
func uplink(t *testing.T, name string) {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.NumTxQueues, attrs.NumRxQueues = name, 4, 4
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: name + "p"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netlink.LinkDel(&netlink.Veth{LinkAttrs: attrs}); err != nil {
			t.Error(err)
		}
	})
}

func wantChannels(t *testing.T, name string, rx, tx int) {
	t.Helper()
	testnode.Eventually(t, patience, func() error {
		for _, k := range knobs {
			want := map[string]int{"channels/rx": rx, "channels/tx": tx}[k.name]
			if got, err := k.use(name, nil); want != 0 && (err != nil || got != want) {
				return fmt.Errorf("%s: want %d, got %d, %v", k.name, want, got, err)
			}
		}
		return nil
	})
}

// What is asked for is set, what the device has not is said, and all is given back: when nobody asks any more, at the end, and by the next one.
func TestAnUplinkIsTunedAndGivenBack(t *testing.T) {
	requireNode(t)
	uplink(t, "up0")
	wantChannels(t, "up0", 4, 4)
	o := Options{Uplinks: map[string]Uplink{"up0": {RxChannels: pointer(2), TxChannels: pointer(3), TxUsecs: pointer(10)}, "missing0": {RxChannels: pointer(1)}}}
	n := start(t, o)
	wantChannels(t, "up0", 2, 3)
	testnode.Eventually(t, patience, func() error {
		for _, want := range []string{"coalesce/tx-usecs: the device does not support it", "device=missing0", "channels/rx 4 → 2"} {
			if !strings.Contains(n.log.String(), want) {
				return fmt.Errorf("want %q in %s", want, n.log.String())
			}
		}
		return nil
	})
	n.Reload(Options{Uplinks: map[string]Uplink{"up0": {RxChannels: pointer(2)}}})
	wantChannels(t, "up0", 2, 4)
	n.Reload(Options{Mode: Off, Uplinks: o.Uplinks})
	wantChannels(t, "up0", 4, 4)
	n.Reload(o)
	wantChannels(t, "up0", 2, 3)
	n.stop()
	wantChannels(t, "up0", 4, 4)
	if got := n.journal.Changes(Part); len(got) != 0 {
		t.Errorf("want an empty journal, got %+v", got)
	}

	d := startDaemon(t, "--config", configFile(t, `{"tuneUplinks": {"up0": {"rxChannels": 1}}}`))
	wantChannels(t, "up0", 1, 4)
	d.end(9)
	wantChannels(t, "up0", 1, 4)
	startDaemon(t)
	wantChannels(t, "up0", 4, 4)
}

func configFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "tapird.json")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// Interrupts of a card: this machine may have none, so the tree is one that was recorded.
func TestInterruptsTakeTurnsOnCPUsNearTheCard(t *testing.T) {
	sys := fstest.MapFS{"class/net/ens1f0/device/numa_node": file("1"), "devices/system/cpu/online": file("0-7"),
		"devices/system/node/node0/cpulist": file("0-3"), "devices/system/node/node1/cpulist": file("4-7")}
	for _, irq := range []string{"101", "99", "100", "102", "103"} {
		sys["class/net/ens1f0/device/msi_irqs/"+irq] = file("msix")
	}
	topo, err := readTopology(sys)
	if err != nil {
		t.Fatal(err)
	}
	tu := New(Config{Sys: sys})
	tu.topology = topo
	for _, tt := range []struct{ word, want string }{
		{nearCPUs, "map[100:5 101:6 102:7 103:4 99:4]"},
		{"1,3", "map[100:3 101:1 102:3 103:1 99:1]"},
		{keepCPUs, "map[]"},
		{"", "map[]"},
	} {
		if got := fmt.Sprint(tu.irqs("ens1f0", tt.word)); got != tt.want {
			t.Errorf("%q: want %s, got %s", tt.word, tt.want, got)
		}
	}
	if got := tu.irqs("veth0", nearCPUs); got != nil {
		t.Errorf("a device without hardware: got %v", got)
	}
}

func TestUplinksAreChecked(t *testing.T) {
	var faults []string
	Uplink{Combined: pointer(0), AdaptiveRx: pointer(2), RxRing: pointer(512), IRQs: "some"}.Validate("tuneUplinks.eth0", func(key, fault string) { faults = append(faults, key+": "+fault) })
	if text := strings.Join(faults, "\n"); len(faults) != 3 || !strings.Contains(text, "channels/combined: want 1 to") || !strings.Contains(text, "adaptive-rx: want 0 to 1") || !strings.Contains(text, ".irqs: want") {
		t.Errorf("got %q", faults)
	}
}
