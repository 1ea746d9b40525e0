package fds_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/tap/queueiter"
	"golang.org/x/sys/unix"
)

// How a VMM comes to its queues.
const (
	byName    = "by name"
	underExec = "exec"
	byFDs     = "fds"
)

// Firecracker's and Cloud Hypervisor's own system calls, by name, under exec and with descriptors: what runs NAPI then is asked of the
// kernel, and so are header and offloads, which stay as that VMM set them.
func TestVMMsOpenSequences(t *testing.T) {
	n := newNode(t)
	n.tapird()
	port := n.echo()
	const fc, ch = "firecracker", "cloud-hypervisor"
	for _, tt := range []struct {
		vmm, keys string
		made      int // queues
		pairs     int // that the VMM opens
		features  uint64
		way       string
		refused   string // the VMM's own word
	}{
		{fc, `"vmm": "firecracker"`, 1, 1, linuxGuest, byName, ""},
		{fc, `"vmm": "firecracker"`, 1, 1, linuxGuest, underExec, ""},
		{fc, `"vmm": "firecracker"`, 1, 1, guestCsum, underExec, ""},
		{fc, `"vmm": "firecracker"`, 1, 1, 0, byName, ""},
		{fc, `"vmm": "generic"`, 2, 1, linuxGuest, byName, "TUNSETIFF: invalid argument"},
		{fc, `"vmm": "generic"`, 2, 1, linuxGuest, underExec, ""},
		{ch, `"vmm": "cloud-hypervisor"`, 1, 1, linuxGuest, byName, ""},
		{ch, `"vmm": "cloud-hypervisor"`, 1, 1, guestCsum | guestTSO4, underExec, ""},
		{ch, `"vmm": "cloud-hypervisor"`, 1, 1, linuxGuest, byFDs, ""},
		{ch, `"vmm": "cloud-hypervisor"`, 2, 2, guestCsum, byName, ""},
		{ch, `"vmm": "cloud-hypervisor"`, 2, 2, linuxGuest, underExec, ""},
		{ch, `"vmm": "cloud-hypervisor"`, 2, 2, 0, byFDs, ""},
		// It looks before it opens, so that exec cannot help it.
		{ch, `"vmm": "generic"`, 2, 1, linuxGuest, underExec, "MultiQueueNoDeviceSupport"},
		{ch, `"vmm": "generic"`, 1, 2, linuxGuest, underExec, "MultiQueueNoTapSupport"},
	} {
		t.Run(fmt.Sprintf("%s %d of %d %s %#x", tt.vmm, tt.pairs, tt.made, tt.way, tt.features), func(t *testing.T) {
			p := n.add(fmt.Sprintf(`"queues": %d, %s`, tt.made, tt.keys))
			defer p.del()
			if before := p.offloads(t); len(before) > 0 {
				t.Errorf("before the VMM the TAP has %v", before)
			}
			v := p.open(t, tt.way, vmmCase{VMM: tt.vmm, TAP: "tap-eth0", Pairs: tt.pairs, Features: tt.features, Guest: p.guest(t, port)})
			if v.Error != tt.refused {
				t.Fatalf("want %q, got %q", tt.refused, v.Error)
			}
			p.wantUp()
			if tt.refused != "" {
				return
			}
			v.wantQueues(t, tt.way, tt.pairs, tt.made > 1)
			v.wantSettings(t, p, tt.way, tt.pairs)
			if diff := cmp.Diff(offloadsOf(v.Offload), p.offloads(t)); diff != "" {
				t.Errorf("offloads of the TAP for mask %#x (-want +got):\n%s", v.Offload, diff)
			}
		})
	}
}

// echo answers datagrams on the node, and gives the port.
func (n *node) echo() int {
	n.t.Helper()
	var conn net.PacketConn
	var err error
	testnode.In(n.t, n.host, func() { conn, err = net.ListenPacket("udp4", "0.0.0.0:0") })
	if err != nil {
		n.t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 2048)
		for {
			got, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo(buf[:got], from) // the guest asks again
		}
	}()
	n.t.Cleanup(func() {
		_ = conn.Close()
		<-done
	})
	return conn.LocalAddr().(*net.UDPAddr).Port
}

// guest is the one that the record describes.
func (p *pod) guest(t *testing.T, port int) guest {
	t.Helper()
	out, err := exec.Command(bin("tapirctl"), "list", "-o", "json", p.id).Output()
	if err != nil {
		t.Fatal(err)
	}
	var all []state.Attachment
	if err := json.Unmarshal(out, &all); err != nil || len(all) == 0 || len(all[len(all)-1].Addresses) == 0 {
		t.Fatalf("list of %s: %v: %s", p.id, err, out)
	}
	i := slices.IndexFunc(all, func(a state.Attachment) bool { return a.ContainerID == p.id })
	return guest{MAC: all[i].GuestMAC, IP: all[i].Addresses[0].Prefix.Addr(), Gateway: all[i].Addresses[0].Gateway, Port: port}
}

// open runs the stand-in in the pod's netns, with that netns's /sys, and waits for its report.
func (p *pod) open(t *testing.T, how string, c vmmCase) vmmReport {
	t.Helper()
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	argv := []string{"unshare", "--mount", "sh", "-c", `mount -t sysfs sysfs /sys && exec "$@"`, "sh", self, vmmArg, string(text)}
	switch how {
	case underExec:
		argv = append([]string{bin("tapirctl"), "exec", "--"}, argv...)
	case byFDs:
		argv = append([]string{bin("tapirctl"), "fds", "--attachment", p.id + "/eth0", "--"}, append(argv, "fd={fd}")...)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	log := &strings.Builder{}
	cmd.Stderr = log
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	testnode.In(t, p.netns, func() { err = cmd.Start() })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v: %s", argv, err, log)
		}
	})
	var r vmmReport
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &r)
	}
	if err != nil {
		t.Fatalf("%s: %v: %s %s", argv, err, line, log)
	}
	return r
}

// wantQueues asks the driver for each queue that the stand-in opened.
func (r vmmReport) wantQueues(t *testing.T, way string, pairs int, multiQueue bool) {
	t.Helper()
	all, err := queueiter.Read()
	if err != nil {
		t.Fatal(err)
	}
	seen := map[int]bool{}
	for _, q := range all {
		i := slices.IndexFunc(q.Holders, func(h queueiter.Holder) bool { return h.PID == r.PID })
		if i < 0 {
			continue
		}
		opened, napi := queueiter.ByName, way != byName
		if way == byFDs {
			opened = queueiter.HandedOver
		}
		if q.NAPI != napi || q.Attach != queueiter.Enabled || q.Holders[i].Opened != opened || q.Device.VnetHdr() != vnetHeader {
			t.Errorf("queue %d: want NAPI %t, enabled, opened %s, header %d, got %+v", q.Index, napi, opened, vnetHeader, q)
		}
		if multi := q.Device.Flags&unix.IFF_MULTI_QUEUE != 0; multi != multiQueue {
			t.Errorf("queue %d: multi_queue is %t, want it as the TAP was made", q.Index, multi)
		}
		seen[q.Index] = true
	}
	if len(seen) != pairs || len(r.FDs) != pairs {
		t.Errorf("want %d queues, got %v of %+v", pairs, seen, r)
	}
}

// wantSettings compares what the VMM saw with what it asked for, and what its frames met with that.
func (r vmmReport) wantSettings(t *testing.T, p *pod, way string, pairs int) {
	t.Helper()
	for i := range pairs {
		if asked := cloudHypervisorFlags(pairs); r.Flags[i] != asked || r.VnetHdr[i] != vnetHeader {
			t.Errorf("queue %d: want the ifreq back with %#x and a header of %d, got %#x and %d", i, asked, vnetHeader, r.Flags[i], r.VnetHdr[i])
		}
		if partial := r.Offload&unix.TUN_F_CSUM != 0; r.Passed[i].Partial != partial {
			t.Errorf("queue %d: the node's checksum came partial %t, want %t for mask %#x", i, r.Passed[i].Partial, partial, r.Offload)
		}
	}
	existed := 0
	if way == byFDs {
		existed = pairs
	}
	if r.Existed != existed {
		t.Errorf("TUNSETIFF was EEXIST %d times, want %d", r.Existed, existed)
	}
	if r.MTU != 0 && r.MTU != 1400 {
		t.Errorf("%s: the VMM read MTU %d, want 1400", p.id, r.MTU)
	}
}

// offloadNames are the features that the driver makes of a mask (set_offload in drivers/net/tun.c). UFO has none any more.
var offloadNames = []struct {
	mask uint
	name string
}{
	{unix.TUN_F_CSUM, "tx-checksum-ip-generic"}, {unix.TUN_F_TSO4, "tx-tcp-segmentation"},
	{unix.TUN_F_TSO6, "tx-tcp6-segmentation"}, {unix.TUN_F_TSO_ECN, "tx-tcp-ecn-segmentation"},
}

func offloadsOf(mask uint) (names []string) {
	for _, o := range offloadNames {
		if mask&o.mask != 0 {
			names = append(names, o.name)
		}
	}
	return names
}

// offloads are those that the TAP has, by ethtool, which shows them as the driver keeps them.
func (p *pod) offloads(t *testing.T) (names []string) {
	t.Helper()
	var out []byte
	var err error
	testnode.In(t, p.netns, func() { out, err = exec.Command("ethtool", "-k", "tap-eth0").CombinedOutput() })
	if err != nil {
		t.Fatalf("ethtool: %v: %s", err, out)
	}
	for _, o := range offloadNames {
		if strings.Contains(string(out), "\t"+o.name+": on") {
			names = append(names, o.name)
		}
	}
	return names
}
