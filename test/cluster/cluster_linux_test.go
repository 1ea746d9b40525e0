package cluster_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/test/cluster/harness"
)

// installLimit is what the README promises from one apply to Ready nodes.
const installLimit = 15 * time.Second

// overlay is the path of one of deploy's.
func overlay(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs("../../deploy/overlays/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// install applies an overlay and waits for Ready nodes.
func install(t *testing.T, c *harness.Cluster, name string) time.Duration {
	t.Helper()
	began := time.Now()
	if out, err := kubectl(c, "apply -k "+overlay(t, name)); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if _, err := c.Ready(context.Background()); err != nil {
		t.Fatal(err)
	}
	return time.Since(began)
}

// The steps share a cluster: each leaves it as it was.
func TestCluster(t *testing.T) {
	c := up(t, harness.Options{Nodes: 2})
	if took := install(t, c, "cluster"); took > installLimit {
		t.Errorf("from apply to Ready nodes: want at most %s, got %s", installLimit, took)
	} else {
		t.Logf("from apply to Ready nodes: %s", took)
	}
	steps(t, c, []step{
		{"Pods", testPods}, {"Services", testServices}, {"HostPort", testHostPort}, {"Masquerade", testMasquerade},
		{"Status", testStatus}, {"PowerCut", testPowerCut}, {"Containerd", testContainerd}, {"TapirdKilled", testKilled}, {"Drain", testDrain},
		{"Many", testMany},
	})
}

type step struct {
	name string
	f    func(*testing.T, *harness.Cluster)
}

// steps runs them in this order, and none on a cluster that one of them may have broken.
func steps(t *testing.T, c *harness.Cluster, steps []step) {
	t.Helper()
	for _, s := range steps {
		if !t.Run(s.name, func(t *testing.T) { s.f(t, c) }) {
			return
		}
		if settled(t, c); t.Failed() {
			return
		}
	}
}

// The same services by kube-proxy's other mode.
func TestIPTables(t *testing.T) {
	c := up(t, harness.Options{Nodes: 2, ProxyMode: "iptables"})
	install(t, c, "cluster")
	steps(t, c, []step{{"Services", testServices}, {"HostPort", testHostPort}})
}
