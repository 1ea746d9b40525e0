package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/agent/watch"
	"github.com/tapir-cni/tapir/internal/output"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

func TestMain(m *testing.M) { testnode.Main(m) }

const patience = 20 * time.Second

// run runs each command line.
func run(t testing.TB, lines ...string) {
	t.Helper()
	for _, line := range lines {
		f := strings.Fields(line)
		if out, err := exec.Command(f[0], f[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", line, err, out)
		}
	}
}

// link makes the node's uplink with its addresses, whose other end is in a netns of its own.
func link(t testing.TB) (world string) {
	t.Helper()
	testnode.Require(t, "root", "ipv6")
	world = testnode.NewNetns(t)
	name := strings.TrimPrefix(world, "/run/netns/")
	run(t, "ip link add up0 type veth peer name down0 netns "+name, "ip addr add 10.200.0.11/24 dev up0", "ip -6 addr add fd00:200::11/64 dev up0 nodad", "ip link set up0 up",
		"ip -n "+name+" link set lo up", "ip -n "+name+" link set down0 up", "ip -n "+name+" addr add 10.200.0.1/24 dev down0",
		"ip route add default via 10.200.0.1")
	t.Cleanup(func() { run(t, "ip link del up0") })
	return world
}

// routes are tapird's, as text.
func routes(t testing.TB) (all []string) {
	t.Helper()
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		list, err := netlink.RouteListFiltered(family, &netlink.Route{Protocol: RouteProtocol}, netlink.RT_FILTER_PROTOCOL)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list {
			all = append(all, fmt.Sprintf("%s via %s", r.Dst, r.Gw))
		}
	}
	return all
}

func wantRoutes(t testing.TB, want ...string) {
	t.Helper()
	testnode.Eventually(t, patience, func() error {
		if got := routes(t); !slices.Equal(got, want) {
			return fmt.Errorf("want the routes %q, got %q", want, got)
		}
		return nil
	})
}

// installer is one whose word can change.
type installer struct {
	changed chan struct{}
	err     error
}

func (i *installer) Ready() error             { return i.err }
func (i *installer) Changed() <-chan struct{} { return i.changed }

// start runs the part with a client that has the nodes.
func start(t testing.TB, o Options, install Install, nodes ...*corev1.Node) (*Cluster, *fake.Clientset, *output.Buffer) {
	t.Helper()
	c, client, log := newCluster(t, o, install, nodes...)
	runCluster(t, c)
	return c, client, log
}

func newCluster(t testing.TB, o Options, install Install, nodes ...*corev1.Node) (*Cluster, *fake.Clientset, *output.Buffer) {
	t.Helper()
	client := fake.NewClientset()
	for _, n := range nodes {
		if err := client.Tracker().Add(n); err != nil {
			t.Fatal(err)
		}
	}
	log := &output.Buffer{}
	o.Enabled, o.Node = true, "own"
	c, err := New(Config{Options: o, Client: client, Install: install, Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(log.String())
		}
	})
	return c, client, log
}

func runCluster(t testing.TB, c *Cluster) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("run: %v", err)
		}
		if err := Remove(); err != nil {
			t.Error(err)
		}
	})
}

var (
	own    = node("own", []string{"10.244.0.0/24", "fd00:244::/64"}, []string{"10.200.0.11", "fd00:200::11"})
	second = node("second", []string{"10.244.1.0/24", "fd00:244:0:1::/64"}, []string{"10.200.0.12", "fd00:200::12"})
	far    = node("far", []string{"10.244.9.0/24"}, []string{"192.0.2.9"})
)

func TestRoutesFollowTheNodes(t *testing.T) {
	link(t)
	run(t, fmt.Sprintf("ip route add 10.244.77.0/24 via 10.200.0.77 proto %d", RouteProtocol)) // of an earlier tapird: that node is gone
	run(t, "ip route add 10.99.0.0/16 via 10.200.0.1")                                         // somebody else's
	c, client, log := start(t, Options{}, nil, own, second)
	to2 := []string{"10.244.1.0/24 via 10.200.0.12", "fd00:244:0:1::/64 via fd00:200::12"}
	wantRoutes(t, to2...)
	if got := c.Ranges(); !slices.Equal(got, []netip.Prefix{netip.MustParsePrefix("10.244.0.0/24"), netip.MustParsePrefix("fd00:244::/64")}) {
		t.Errorf("want the own Node's ranges, got %v", got)
	}

	run(t, "ip route del 10.244.1.0/24") // somebody deletes it
	wantRoutes(t, to2...)

	run(t, "ip link set up0 down", "ip link set up0 up", "ip -6 addr add fd00:200::11/64 dev up0 nodad", "ip route add default via 10.200.0.1", "ip route add 10.99.0.0/16 via 10.200.0.1") // the kernel drops routes with the link
	wantRoutes(t, to2...)

	ctx := context.Background()
	moved := second.DeepCopy()
	moved.Status.Addresses[0].Address = "10.200.0.22"
	if _, err := client.CoreV1().Nodes().UpdateStatus(ctx, moved, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	wantRoutes(t, "10.244.1.0/24 via 10.200.0.22", to2[1])

	if _, err := client.CoreV1().Nodes().Create(ctx, far, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	testnode.Eventually(t, patience, func() error {
		if list := c.Unreachable(); len(list) != 1 || !strings.Contains(list[0], "node far (10.244.9.0/24): 192.0.2.9 is not on a link of this node but behind 10.200.0.1") {
			return fmt.Errorf("want that far is out of reach, got %q", list)
		}
		return nil
	})
	testnode.Eventually(t, patience, func() error {
		events, err := client.CoreV1().Events("").List(ctx, metav1.ListOptions{})
		if err == nil && (len(events.Items) != 1 || events.Items[0].Reason != "NodeUnreachable") {
			err = fmt.Errorf("want one event, got %+v", events.Items)
		}
		return err
	})
	if err := c.Ready(); err != nil {
		t.Errorf("want it ready all the same, got %v", err)
	}

	if err := client.CoreV1().Nodes().Delete(ctx, "second", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	wantRoutes(t)
	if out, _ := exec.Command("ip", "route", "show", "10.99.0.0/16").Output(); len(out) == 0 {
		t.Error("somebody else's route is gone")
	}
	if !strings.Contains(log.String(), "no route leads to the pods of a node") {
		t.Error("want the log to name the node out of reach")
	}
}

// echo answers each datagram with the address that it came from.
func echo(t testing.TB, netns, address string) {
	t.Helper()
	var conn net.PacketConn
	testnode.In(t, netns, func() {
		var err error
		if conn, err = net.ListenPacket("udp", address); err != nil {
			t.Fatal(err)
		}
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 64)
		for {
			_, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo([]byte(from.String()), from)
		}
	}()
	t.Cleanup(func() { _ = conn.Close(); <-done })
}

// ask gives the address that a datagram of the netns comes from, as to sees it.
func ask(t testing.TB, netns, to string) (from string) {
	t.Helper()
	testnode.Eventually(t, patience, func() (err error) {
		testnode.In(t, netns, func() {
			var conn net.Conn
			if conn, err = net.Dial("udp", to); err != nil {
				return
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(time.Second))
			buf := make([]byte, 64)
			var n int
			if _, err = conn.Write([]byte("?")); err == nil {
				n, err = conn.Read(buf)
			}
			from, _, _ = net.SplitHostPort(string(buf[:n]))
		})
		return err
	})
	return from
}

func TestOnlyWhatLeavesTheClusterIsMasqueraded(t *testing.T) {
	world := link(t)
	pod := testnode.NewNetns(t)
	w, p := strings.TrimPrefix(world, "/run/netns/"), strings.TrimPrefix(pod, "/run/netns/")
	run(t, "ip link add pod0 type veth peer name eth0 netns "+p, "ip addr add 10.244.0.1/24 dev pod0", "ip link set pod0 up", "ip -n "+p+" addr add 10.244.0.2/24 dev eth0",
		"ip -n "+p+" link set eth0 up", "ip -n "+p+" route add default via 10.244.0.1", "sysctl -qw net.ipv4.ip_forward=1",
		// The world is the second node, a server outside, and one in a range that is reached as it is.
		"ip -n "+w+" addr add 10.200.0.12/24 dev down0", "ip -n "+w+" addr add 10.244.1.5/32 dev lo", "ip -n "+w+" addr add 198.51.100.5/32 dev lo", "ip -n "+w+" addr add 172.20.0.5/32 dev lo",
		"ip -n "+w+" route add 10.244.0.0/24 via 10.200.0.11")
	t.Cleanup(func() { run(t, "ip link del pod0", "sysctl -qw net.ipv4.ip_forward=0") })
	for _, at := range []string{"198.51.100.5", "10.244.1.5", "172.20.0.5"} { // each answers from its own address
		echo(t, world, at+":7")
	}
	c, _, _ := start(t, Options{Masquerade: true, NonMasqueradeCIDRs: []string{"172.20.0.0/16"}}, nil, own, second)
	testnode.Eventually(t, patience, c.Ready)
	want := func(to, from string) {
		t.Helper()
		if got := ask(t, pod, to+":7"); got != from {
			t.Errorf("to %s: want it to come from %s, got %s", to, from, got)
		}
	}
	want("198.51.100.5", "10.200.0.11")
	want("10.244.1.5", "10.244.0.2")
	want("172.20.0.5", "10.244.0.2")
	if err := Remove(); err != nil { // the control: without the table it goes out as it is
		t.Fatal(err)
	}
	run(t, "conntrack -F")
	want("198.51.100.5", "10.244.0.2")
}

func TestTheNodeSaysWhetherTapirIsInstalled(t *testing.T) {
	link(t)
	n := own.DeepCopy()
	n.Spec.Taints = []corev1.Taint{{Key: "tapir.dev/not-installed", Effect: corev1.TaintEffectNoSchedule}, {Key: "other", Effect: corev1.TaintEffectNoSchedule}}
	i := &installer{changed: make(chan struct{}, 1), err: errors.New("the plugin is not there")}
	_, client, _ := start(t, Options{NetworkUnavailable: true, Taint: "tapir.dev/not-installed"}, i, n)
	wantNode := func(status corev1.ConditionStatus, message string, taints int) {
		t.Helper()
		testnode.Eventually(t, patience, func() error {
			got, err := client.CoreV1().Nodes().Get(context.Background(), "own", metav1.GetOptions{})
			if err != nil {
				return err
			}
			at := slices.IndexFunc(got.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeNetworkUnavailable })
			if at < 0 || got.Status.Conditions[at].Status != status || got.Status.Conditions[at].Message != message || len(got.Spec.Taints) != taints {
				return fmt.Errorf("want NetworkUnavailable %s (%s) and %d taints, got %+v, %v", status, message, taints, got.Status.Conditions, got.Spec.Taints)
			}
			return nil
		})
	}
	wantNode(corev1.ConditionTrue, "the plugin is not there", 2)
	i.err = nil
	i.changed <- struct{}{}
	wantNode(corev1.ConditionFalse, "tapir is installed on this node", 1)
}

func TestAPodIsToldWhatIsRefused(t *testing.T) {
	link(t)
	c, client, _ := newCluster(t, Options{}, nil, own)
	pod := podOf("a", "web", nil)
	pod.UID = "12345"
	if err := client.Tracker().Add(pod); err != nil {
		t.Fatal(err)
	}
	all := &attachments{}
	all.add("a", "web", "")
	all.add("a", "content", "")
	c.SetAttachments(all, all.flag, func(a *watch.Attachment) string {
		if a.Record.PodName == "web" {
			return "the pod asks for profile \"bulk\""
		}
		return ""
	})
	runCluster(t, c)
	ctx := context.Background()
	testnode.Eventually(t, patience, func() error {
		events, err := client.CoreV1().Events("a").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(events.Items) != 1 || events.Items[0].Reason != "TapirRefused" || events.Items[0].InvolvedObject.UID != "12345" ||
			!strings.Contains(events.Items[0].Message, "bulk") {
			return fmt.Errorf("want one event of the pod, got %+v", events.Items)
		}
		return nil
	})
	all.add("a", "more", "") // it is not told again
	time.Sleep(200 * time.Millisecond)
	if events, err := client.CoreV1().Events("a").List(ctx, metav1.ListOptions{}); err != nil || len(events.Items) != 1 || events.Items[0].Count > 1 {
		t.Errorf("want it to be told once, got %+v, %v", events, err)
	}
}
