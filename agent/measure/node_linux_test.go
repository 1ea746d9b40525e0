package measure_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/agent/measure"
	"github.com/tapir-cni/tapir/agent/watch"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/tap"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// patience is how long what is bound to happen may take on a busy machine.
const patience = 30 * time.Second

// The node is the netns that the tests run in: tapir's ADD makes attachments in it.
func requireNode(t testing.TB) {
	t.Helper()
	testnode.Require(t, "root", "tun", "bpf", "btf")
	t.Cleanup(func() {
		for _, dir := range []string{state.DefaultDir, "/sys/fs/bpf/tapir"} {
			if err := os.RemoveAll(dir); err != nil {
				t.Error(err)
			}
		}
	})
}

// A pod is an attachment that ADD made.
type pod struct {
	t         testing.TB
	id, netns string
	keys      string
}

var serial atomic.Int64

func add(t testing.TB, keys string) *pod {
	t.Helper()
	p := &pod{t: t, id: fmt.Sprintf("pod%d", serial.Add(1)), netns: testnode.NewNetns(t), keys: keys}
	if noIPv6 {
		testnode.In(t, p.netns, func() {
			for _, name := range []string{"default", "all"} {
				if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/disable_ipv6", []byte("1"), 0); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
	p.cni("ADD")
	t.Cleanup(func() { p.cni("DEL") })
	return p
}

// quiet keeps IPv6 out of namespaces and devices that are made from now on: nothing is sent that the test does not send.
func quiet(t testing.TB) {
	t.Helper()
	set := func(value string) {
		for _, name := range []string{"conf/default/disable_ipv6", "conf/all/disable_ipv6"} {
			if err := os.WriteFile("/proc/sys/net/ipv6/"+name, []byte(value), 0); err != nil {
				t.Error(err)
			}
		}
	}
	set("1")
	noIPv6 = true
	t.Cleanup(func() { set("0"); noIPv6 = false })
}

var noIPv6 bool // in sandboxes that are made

func (p *pod) cni(verb string) {
	p.t.Helper()
	cmd := exec.Command(filepath.Join(os.Getenv(testnode.BinDirEnv), "tapir"))
	cmd.Env = []string{"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + p.id, "CNI_NETNS=" + p.netns, "CNI_IFNAME=eth0", "CNI_PATH=/nonexistent"}
	cmd.Stdin = strings.NewReader(fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "pods", "type": "tapir", "mtu": 1400, %s
		"ipam": {"type": "tapir-ipam", "reuseDelay": "1h", "ranges": [[{"subnet": "10.9.0.0/24"}]]}}`, p.keys))
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	if out, err := cmd.Output(); err != nil {
		p.t.Errorf("%s of %s: %v: %s%s", verb, p.id, err, out, errOut.Bytes())
	}
}

func (p *pod) open(queues int) *tap.Queues {
	p.t.Helper()
	q, err := tap.OpenQueues(tap.QueueOptions{Netns: p.netns, Name: "tap-eth0", Count: queues, NAPI: true})
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = q.Close() }) // a test may have closed it
	return q
}

// node is a watcher and a sampler that run.
type node struct {
	t       testing.TB
	watch   *watch.Watcher
	sampler *measure.Sampler
	stop    func()
}

func start(t testing.TB, c measure.Config) *node {
	t.Helper()
	n := &node{t: t, watch: watch.New(watch.Config{})}
	c.Watch = n.watch
	n.sampler = measure.New(c)
	ctx, cancel := context.WithCancel(context.Background())
	var parts sync.WaitGroup
	for _, run := range []func(context.Context) error{n.watch.Run, n.sampler.Run} {
		parts.Go(func() {
			if err := run(ctx); err != nil {
				t.Errorf("run: %v", err)
			}
		})
	}
	n.stop = sync.OnceFunc(func() { cancel(); parts.Wait() })
	t.Cleanup(n.stop)
	return n
}

func (n *node) sample() *measure.Sample {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s, err := n.sampler.Sample(ctx)
	if err != nil {
		n.t.Fatal(err)
	}
	return s
}

// eventually takes samples until what is read of the pod is as f wants it.
func (n *node) eventually(p *pod, f func(*measure.Attachment) error) *measure.Attachment {
	n.t.Helper()
	var err error
	for until := time.Now().Add(patience); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		err = fmt.Errorf("%s is not in the sample", p.id)
		for _, a := range n.sample().Attachments {
			if a.ContainerID != p.id {
				continue
			}
			if err = f(a); err == nil {
				return a
			}
		}
	}
	n.t.Fatalf("not after %s: %v", patience, err)
	return nil
}

// frame is an Ethernet frame of the guest's with a vnet header before it: an echo reply to the gateway, which nobody asked for and nobody answers.
func (p *pod) frame(vnetHdr, size int) []byte {
	p.t.Helper()
	var mac net.HardwareAddr
	var src net.IP
	testnode.In(p.t, p.netns, func() {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			p.t.Fatal(err)
		}
		mac = l.Attrs().HardwareAddr
	})
	store := state.New(state.Config{})
	err := store.View(context.Background(), func(tx *state.Tx) error {
		a, _, err := tx.Attachment(state.Key{Network: "pods", ContainerID: p.id, IfName: "eth0"})
		if err == nil {
			src = a.Addresses[0].Prefix.Addr().AsSlice()
		}
		return err
	})
	if err != nil {
		p.t.Fatal(err)
	}
	b := make([]byte, vnetHdr, vnetHdr+size)
	b = append(b, 0x02, 0x74, 0x61, 0x70, 0x69, 0x72)
	b = append(b, mac...)
	b = binary.BigEndian.AppendUint16(b, unix.ETH_P_IP)
	ip := make([]byte, 20)
	ip[0], ip[8], ip[9] = 0x45, 64, unix.IPPROTO_ICMP
	binary.BigEndian.PutUint16(ip[2:], uint16(size-14))
	copy(ip[12:], src)
	copy(ip[16:], net.IPv4(10, 9, 0, 1).To4())
	var sum uint32
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum))
	b = append(b, ip...)
	return append(b, make([]byte, size-34)...)
}
