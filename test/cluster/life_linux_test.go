package cluster_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tapir-cni/tapir/test/cluster/harness"
)

// tapirctl runs this build's on a node.
func tapirctl(ctx context.Context, n *harness.Node, args ...string) (string, error) {
	return n.Run(ctx, append([]string{filepath.Join(os.Getenv("TAPIR_BIN_DIR"), "tapirctl")}, args...)...)
}

// settled waits until no node has anything of a pod: a device, a netns, an attachment.
func settled(t *testing.T, c *harness.Cluster) {
	t.Helper()
	for _, n := range c.Nodes {
		if err := c.Until(context.Background(), n.Name+" without pods", func(ctx context.Context) error {
			links, err := n.Run(ctx, "ip", "-br", "link")
			if err != nil {
				return err
			}
			if count := strings.Count(links, "\n"); count != 2 {
				return fmt.Errorf("want lo and eth0, got\n%s", links)
			}
			netns, err := n.Run(ctx, "ls", "/run/netns")
			if err != nil || netns != "" {
				return fmt.Errorf("want no netns, got %q, %w", netns, err)
			}
			list, err := tapirctl(ctx, n, "list", "-o", "json")
			var attachments []json.RawMessage
			if err = errors.Join(err, json.Unmarshal([]byte(list), &attachments)); err != nil || len(attachments) > 0 {
				return fmt.Errorf("want no attachments, got %s, %w", list, err)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
}

// stream asks all the time, from the first answer (a guest may still be at its duplicate address detection) until stop says how many answers and how many failures there were.
func stream(t *testing.T, c *harness.Cluster, ask func(context.Context, string) (answer, error), target string) (stop func() (answers int, failures []error)) {
	t.Helper()
	eventually(t, c, "before the stream", ask, target, func(answer) error { return nil })
	ctx, cancel := context.WithCancel(context.Background())
	var answers int
	var failures []error
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if _, err := ask(context.Background(), target); err != nil {
				failures = append(failures, fmt.Errorf("%s: %w", time.Now().Format("05.000"), err))
			} else {
				answers++
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()
	stop = sync.OnceValues(func() (int, []error) {
		cancel()
		<-done
		return answers, failures
	})
	t.Cleanup(func() { stop() })
	return stop
}

// noneFailed wants answers alone.
func noneFailed(t *testing.T, what string, stop func() (int, []error)) {
	t.Helper()
	answers, failures := stop()
	if answers == 0 || len(failures) > 0 {
		t.Errorf("%s: %d answers and %d failures: %v", what, answers, len(failures), errors.Join(failures...))
	}
	t.Logf("%s: %d answers", what, answers)
}

// testStatus: what STATUS says makes the node NotReady, with the reason in "describe node".
func testStatus(t *testing.T, c *harness.Cluster) {
	n := c.Nodes[1]
	if _, err := n.Run(t.Context(), "mount", "--bind", "/dev/null", "/dev/net/tun"); err != nil {
		t.Fatal(err)
	}
	undo := sync.OnceFunc(func() {
		if _, err := n.Run(context.Background(), "umount", "/dev/net/tun"); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(undo)
	if err := c.Until(t.Context(), n.Name+" to be NotReady for its TAPs", func(context.Context) error {
		out, err := kubectl(c, "describe node "+n.Name)
		if err != nil {
			return err
		}
		if !strings.Contains(out, "this node can serve no ADD") || !strings.Contains(out, "/dev/net/tun") {
			return fmt.Errorf("the reason is not there:\n%s", out)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if out, err := kubectl(c, "get nodes "+n.Name); err != nil || !strings.Contains(out, "NotReady") {
		t.Errorf("want NotReady, got %s, %v", out, err)
	}
	undo()
	if _, err := c.Ready(t.Context()); err != nil {
		t.Error(err)
	}
}

// testPowerCut: pods of a node that lost its power come back with it, and nothing of their first life stays.
func testPowerCut(t *testing.T, c *harness.Cluster) {
	pods := run(t, c, probePod("stays", "node1"), probePod("returns", "node2"), probePod("vmreturns", "node2", guestIn(t, c)))
	ask := from(t, c, pods[0])
	for _, p := range pods[1:] {
		eventually(t, c, "before", ask, urlOf(addresses(t, p)[0], probePort), seenAs(addresses(t, pods[0])[0]))
	}
	if err := c.Nodes[1].PowerCut(); err != nil {
		t.Fatal(err)
	}
	if a, err := ask(t.Context(), urlOf(addresses(t, pods[1])[0], probePort)); err == nil {
		t.Errorf("a pod of a node without power answers: %+v", a)
	}
	if err := c.Nodes[1].Start(); err != nil {
		t.Fatal(err)
	}
	for _, p := range pods[1:] {
		if err := c.Until(t.Context(), p.Name+"'s second life", func(ctx context.Context) error {
			now, err := c.Client.CoreV1().Pods(namespace).Get(ctx, p.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if now.Status.ContainerStatuses[0].RestartCount == 0 {
				return errors.New("it has not been started again")
			}
			return podReady(now)
		}); err != nil {
			t.Fatal(err)
		}
		for family, target := range addresses(t, ready(t, c, p.Name)) {
			eventually(t, c, fmt.Sprint("after, to ", p.Name, " at ", target), ask, urlOf(target, probePort), seenAs(addresses(t, pods[0])[family]))
		}
	}
	daemonsReady(t, c)
}

// daemonsReady waits for tapird on every node.
func daemonsReady(t *testing.T, c *harness.Cluster) {
	t.Helper()
	if err := c.Until(t.Context(), "tapird on all nodes", func(ctx context.Context) error {
		set, err := c.Client.AppsV1().DaemonSets("tapir-system").Get(ctx, "tapird", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if s := set.Status; s.ObservedGeneration != set.Generation || int(s.NumberReady) != len(c.Nodes) || s.UpdatedNumberScheduled != s.NumberReady {
			return fmt.Errorf("%+v", s)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// testContainerd: running pods do not notice that containerd was killed, and new ones start.
func testContainerd(t *testing.T, c *harness.Cluster) {
	pods := run(t, c, probePod("asks", "node1"), probePod("answers", "node1"), probePod("vmanswers", "node1", guestIn(t, c)))
	streams := []func() (int, []error){
		stream(t, c, from(t, c, pods[0]), urlOf(addresses(t, pods[1])[0], probePort)),
		stream(t, c, from(t, c, pods[0]), urlOf(addresses(t, pods[2])[1], probePort)),
	}
	if err := c.Nodes[0].RestartContainerd(t.Context()); err != nil {
		t.Fatal(err)
	}
	late := run(t, c, probePod("late", "node1"))
	eventually(t, c, "a new pod", from(t, c, pods[0]), urlOf(addresses(t, late[0])[0], probePort), answeredBy("late"))
	for _, stop := range streams {
		noneFailed(t, "while containerd was killed", stop)
	}
	for _, p := range pods {
		if n := ready(t, c, p.Name).Status.ContainerStatuses[0].RestartCount; n != 0 {
			t.Errorf("%s was restarted %d times", p.Name, n)
		}
	}
}

// testKilled: tapird is killed at random while pods come and go: all of them have their network, and those that run do not notice.
func testKilled(t *testing.T, c *harness.Cluster) {
	pods := run(t, c, probePod("asks", "node1"), probePod("answers", "node2"), probePod("vmanswers", "node2", guestIn(t, c)))
	streams := []func() (int, []error){
		stream(t, c, from(t, c, pods[0]), urlOf(addresses(t, pods[1])[0], probePort)),
		stream(t, c, from(t, c, pods[0]), urlOf(addresses(t, pods[2])[0], probePort)),
	}
	ctx, cancel := context.WithCancel(t.Context())
	kills := make(chan int)
	go func() {
		n := 0
		for ctx.Err() == nil && n < 8 { // the kubelet's back-off grows
			time.Sleep(time.Duration(rand.IntN(1500)) * time.Millisecond)
			// It fails where tapird is not up again yet.
			if _, err := c.Nodes[rand.IntN(len(c.Nodes))].Run(context.Background(), "pkill", "-KILL", "-x", "tapird"); err == nil {
				n++
			}
		}
		kills <- n
	}()
	for wave := range 3 {
		var some []*corev1.Pod
		for i := range 8 {
			some = append(some, probePod(fmt.Sprintf("wave%d-%d", wave, i), c.Nodes[i%2].Name))
		}
		for _, p := range run(t, c, some...) {
			eventually(t, c, p.Name, from(t, c, pods[0]), urlOf(addresses(t, p)[1], probePort), answeredBy(p.Name))
		}
		remove(t, c, some...)
	}
	cancel()
	if n := <-kills; n == 0 {
		t.Error("tapird was never killed")
	} else {
		t.Logf("tapird was killed %d times", n)
	}
	for _, stop := range streams {
		noneFailed(t, "while tapird was killed", stop)
	}
	daemonsReady(t, c)
}

// testDrain: what a drained node ran comes up on the other one.
func testDrain(t *testing.T, c *harness.Cluster) {
	const replicas = 4
	manifest := fmt.Sprintf(`{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "moves"}, "spec": {"replicas": %d,
		"selector": {"matchLabels": {"app": "moves"}}, "template": {"metadata": {"labels": {"app": "moves"}}, "spec": {"terminationGracePeriodSeconds": 1,
		"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {"matchLabels": {"app": "moves"}}}],
		"containers": [{"name": "probe", "image": "localhost/probe:1", "imagePullPolicy": "Never", "args": ["serve"],
		"readinessProbe": {"httpGet": {"path": "/", "port": %d}, "periodSeconds": 1}}]}}}}`, replicas, probePort)
	apply(t, c, manifest)
	t.Cleanup(func() {
		for _, line := range []string{"uncordon node2", "delete deployment moves --cascade=foreground"} {
			if _, err := kubectl(c, line); err != nil {
				t.Error(err)
			}
		}
	})
	on := func(want map[string]bool) []corev1.Pod {
		var pods []corev1.Pod
		if err := c.Until(t.Context(), fmt.Sprint("pods on ", want), func(ctx context.Context) error {
			list, err := c.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=moves"})
			if err != nil {
				return err
			}
			pods = list.Items
			nodes := map[string]bool{}
			for _, p := range pods {
				if err := podReady(&p); err != nil {
					return err
				}
				nodes[p.Spec.NodeName] = true
			}
			if len(pods) != replicas || fmt.Sprint(nodes) != fmt.Sprint(want) {
				return fmt.Errorf("%d pods on %v", len(pods), nodes)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return pods
	}
	on(map[string]bool{"node1": true, "node2": true})
	if out, err := kubectl(c, "drain node2 --ignore-daemonsets --timeout=60s"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, p := range on(map[string]bool{"node1": true}) {
		eventually(t, c, p.Name, from(t, c, &p), urlOf(addresses(t, &p)[1], probePort), answeredBy(p.Name))
	}
}

func apply(t *testing.T, c *harness.Cluster, manifest string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if out, err := c.Kubectl(ctx, manifest, "apply", "-f", "-"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// testMany: a hundred pods at once, each with addresses of its own out of its node's ranges, and the way back.
func testMany(t *testing.T, c *harness.Cluster) {
	const count = 100
	var pods []*corev1.Pod
	for i := range count {
		pods = append(pods, probePod(fmt.Sprintf("many-%d", i), c.Nodes[i%len(c.Nodes)].Name))
	}
	ranges := map[string][]netip.Prefix{}
	for _, n := range c.Nodes {
		node, err := c.Client.CoreV1().Nodes().Get(t.Context(), n.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, cidr := range node.Spec.PodCIDRs {
			ranges[n.Name] = append(ranges[n.Name], netip.MustParsePrefix(cidr))
		}
	}
	began := time.Now()
	seen := map[netip.Addr]string{}
	for _, p := range run(t, c, pods...) {
		for _, a := range addresses(t, p) {
			if other, ok := seen[a]; ok {
				t.Errorf("%s has %s, which is %s's", p.Name, a, other)
			}
			seen[a] = p.Name
			if !slices.ContainsFunc(ranges[p.Spec.NodeName], func(r netip.Prefix) bool { return r.Contains(a) }) {
				t.Errorf("%s on %s has %s, which is in none of %v", p.Name, p.Spec.NodeName, a, ranges[p.Spec.NodeName])
			}
		}
	}
	up := time.Since(began)
	first := from(t, c, pods[0])
	for _, p := range pods {
		eventually(t, c, p.Name, first, urlOf(addresses(t, p)[1], probePort), answeredBy(p.Name))
	}
	began = time.Now()
	remove(t, c, pods...)
	t.Logf("%d pods up in %s, down in %s", count, up, time.Since(began))
}
