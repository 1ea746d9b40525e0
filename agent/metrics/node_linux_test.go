package metrics

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
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

// A pod is an attachment that ADD made, of Kubernetes.
type pod struct {
	t         testing.TB
	id, netns string
	keys      string // of the configuration
}

var serial atomic.Int64

func add(t testing.TB, keys string) *pod {
	t.Helper()
	p := newPod(t, keys)
	p.cni("ADD")
	t.Cleanup(func() { p.cni("DEL") })
	return p
}

func newPod(t testing.TB, keys string) *pod {
	p := &pod{t: t, id: fmt.Sprintf("pod%d", serial.Add(1)), netns: testnode.NewNetns(t), keys: keys}
	testnode.In(t, p.netns, func() { disableIPv6(t) }) // nothing is sent that the test does not send
	return p
}

func disableIPv6(t testing.TB) {
	for _, name := range []string{"default", "all"} {
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/disable_ipv6", []byte("1"), 0); err != nil {
			t.Fatal(err)
		}
	}
}

// quiet keeps IPv6 out of devices that are made in the node from now on.
func quiet(t testing.TB) {
	t.Helper()
	disableIPv6(t)
	t.Cleanup(func() {
		for _, name := range []string{"default", "all"} {
			if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/disable_ipv6", []byte("0"), 0); err != nil {
				t.Error(err)
			}
		}
	})
}

func (p *pod) cni(verb string) {
	p.t.Helper()
	if out, err := p.call(verb); err != nil {
		p.t.Errorf("%s of %s: %v: %s", verb, p.id, err, out)
	}
}

// call makes a CNI call; the error is that of the process.
func (p *pod) call(verb string) ([]byte, error) {
	cmd := exec.Command(filepath.Join(os.Getenv(testnode.BinDirEnv), "tapir"))
	cmd.Env = []string{"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + p.id, "CNI_NETNS=" + p.netns, "CNI_IFNAME=eth0", "CNI_PATH=/nonexistent",
		"CNI_ARGS=K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-" + p.id}
	cmd.Stdin = strings.NewReader(fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "pods", "type": "tapir", "mtu": 1400, %s
		"ipam": {"type": "tapir-ipam", "reuseDelay": "1h", "ranges": [[{"subnet": "10.9.0.0/24"}]]}}`, p.keys))
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	out, err := cmd.Output()
	return append(out, errOut.Bytes()...), err
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

// device gives the pod's interface and the TAP's, as the kernel shows them.
func (p *pod) device(name string) *netlink.LinkAttrs {
	p.t.Helper()
	var attrs *netlink.LinkAttrs
	testnode.In(p.t, p.netns, func() {
		l, err := netlink.LinkByName(name)
		if err != nil {
			p.t.Fatal(err)
		}
		attrs = l.Attrs()
	})
	return attrs
}

func (p *pod) address() net.IP {
	p.t.Helper()
	var ip net.IP
	err := state.New(state.Config{}).View(context.Background(), func(tx *state.Tx) error {
		a, _, err := tx.Attachment(state.Key{Network: "pods", ContainerID: p.id, IfName: "eth0"})
		if err == nil {
			ip = a.Addresses[0].Prefix.Addr().AsSlice()
		}
		return err
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return ip
}

// packet is an echo reply that nobody asked for and nobody answers, in Ethernet, with a number in it.
func packet(dst, src net.HardwareAddr, from, to net.IP, number uint32) []byte {
	b := append(append([]byte{}, dst...), src...)
	b = binary.BigEndian.AppendUint16(b, unix.ETH_P_IP)
	ip := make([]byte, 20)
	ip[0], ip[8], ip[9] = 0x45, 64, unix.IPPROTO_ICMP
	binary.BigEndian.PutUint16(ip[2:], 20+8+4)
	copy(ip[12:], from.To4())
	copy(ip[16:], to.To4())
	var sum uint32
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum))
	b = append(append(b, ip...), make([]byte, 8)...)
	return binary.BigEndian.AppendUint32(b, number)
}

const packetSize = 14 + 20 + 8 + 4

// vnetHdr is the virtio-net header before each frame of a TAP, in bytes.
const vnetHdr = 10

// node is a watcher, a sampler and an exporter that run.
type node struct {
	t        testing.TB
	exporter *Exporter
	url      string
}

func start(t testing.TB, c Config) *node {
	t.Helper()
	c.Watch = watch.New(watch.Config{})
	sampler := measure.New(measure.Config{Watch: c.Watch, MaxAge: time.Nanosecond})
	c.Measure = sampler
	ctx, cancel := context.WithCancel(context.Background())
	var parts sync.WaitGroup
	for _, run := range []func(context.Context) error{c.Watch.Run, sampler.Run} {
		parts.Go(func() {
			if err := run(ctx); err != nil {
				t.Errorf("run: %v", err)
			}
		})
	}
	n := &node{t: t, exporter: New(c)}
	server := httptest.NewServer(n.exporter.Handler(false))
	n.url = server.URL
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		server.Close()
		cancel()
		parts.Wait()
	})
	return n
}

// scraped is what /metrics gave, parsed anew.
type scraped map[string]*dto.MetricFamily

func (n *node) scrape() scraped {
	n.t.Helper()
	all, err := scrape(n.url)
	if err != nil {
		n.t.Fatal(err)
	}
	return all
}

func scrape(url string) (scraped, error) {
	r, err := http.Get(url + "/metrics")
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("want 200, got %s", r.Status)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	return parser.TextToMetricFamilies(r.Body)
}

// value is a series' value: labels are those that it must have, as "name=value".
func (s scraped) value(name string, labels ...string) (float64, error) {
	found, value := 0, 0.0
	for _, m := range s[name].GetMetric() {
		have := map[string]bool{}
		for _, l := range m.Label {
			have[l.GetName()+"="+l.GetValue()] = true
		}
		all := true
		for _, l := range labels {
			all = all && have[l]
		}
		if all {
			found++
			value = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	if found != 1 {
		return 0, fmt.Errorf("%s%q: want one series, got %d", name, labels, found)
	}
	return value, nil
}

// eventually scrapes until f is content.
func (n *node) eventually(f func(scraped) error) {
	n.t.Helper()
	var err error
	for until := time.Now().Add(patience); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		if err = f(n.scrape()); err == nil {
			return
		}
	}
	n.t.Fatalf("not after %s: %v", patience, err)
}

// wants holds series of one pod, written "name{label=value,…}", against their values.
func (p *pod) wants(want map[string]float64) func(scraped) error {
	return func(s scraped) error {
		var errs []error
		for series, w := range want {
			name, rest, _ := strings.Cut(strings.TrimSuffix(series, "}"), "{")
			labels := []string{"container_id=" + p.id, "namespace=shop", "pod=web-" + p.id, "network=pods", "interface=eth0"}
			if rest != "" {
				labels = append(labels, strings.Split(rest, ",")...)
			}
			if got, err := s.value(name, labels...); err != nil {
				errs = append(errs, err)
			} else if got != w {
				errs = append(errs, fmt.Errorf("%s: want %g, got %g", series, w, got))
			}
		}
		return errors.Join(errs...)
	}
}
