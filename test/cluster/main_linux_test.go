package cluster_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/internal/microvm/vmtest"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/test/cluster/harness"
)

func TestMain(m *testing.M) { vmtest.Main(m, "tapirctl") }

// Folders of what the Makefile builds.
const (
	kubernetesEnv = "TAPIR_K8S"
	imagesEnv     = "TAPIR_IMAGES"
	pluginsEnv    = "TAPIR_REFPLUGINS"
)

// up starts a cluster that ends with the test.
func up(t *testing.T, o harness.Options) *harness.Cluster {
	t.Helper()
	testnode.Require(t, "root", "bpf", "btf", "tun", "ipv6")
	for env, into := range map[string]*string{kubernetesEnv: &o.Bin, imagesEnv: &o.Images, pluginsEnv: &o.Plugins} {
		*into = os.Getenv(env)
		if *into != "" {
			continue
		}
		if testnode.Required("cluster") {
			t.Fatalf("needs %s, and TAPIR_REQUIRE says that it is here; run \"make test-cluster\"", env)
		}
		t.Skipf("needs %s; run \"make test-cluster\"", env)
	}
	began := time.Now()
	c, err := harness.Up(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d nodes are registered after %s", len(c.Nodes), time.Since(began))
	t.Cleanup(func() {
		if t.Failed() {
			keepLogs(t, c)
		}
		if err := c.Down(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// keepLogs copies the logs to a folder that stays, and says where.
func keepLogs(t *testing.T, c *harness.Cluster) {
	t.Helper()
	to, err := os.MkdirTemp("", "tapir-cluster-logs-*")
	if err != nil {
		t.Error(err)
		return
	}
	logs, _ := filepath.Glob(c.Dir + "/*.log") // the pattern is right
	more, _ := filepath.Glob(c.Dir + "/*/*.log")
	programs, _ := filepath.Glob(c.Dir + "/*/var-log/*.log")
	pods, _ := filepath.Glob(c.Dir + "/*/var-log/pods/*/*/*.log")
	for _, log := range slices.Concat(logs, more, programs, pods) {
		data, err := os.ReadFile(log)
		if err != nil {
			t.Log(err)
			continue
		}
		name := strings.ReplaceAll(strings.TrimPrefix(log, c.Dir+"/"), "/", "_")
		if err := os.WriteFile(filepath.Join(to, name), data, 0o644); err != nil {
			t.Log(err)
		}
	}
	t.Logf("the logs are in %s", to)
	for _, kind := range []string{"nodes", "pods -A -o wide", "events -A"} {
		if out, err := kubectl(c, "get "+kind); err == nil {
			t.Logf("%s:\n%s", kind, out)
		}
	}
}

// kubectl runs it as the administrator.
func kubectl(c *harness.Cluster, line string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := c.Kubectl(ctx, "", strings.Fields(line)...)
	if err != nil {
		return out, fmt.Errorf("kubectl %s: %w", line, err)
	}
	return out, nil
}
