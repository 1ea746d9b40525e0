package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tapir-cni/tapir/test/cluster/harness"
)

// traces are what tapir could leave on a node: files, pins, nft tables, routes, devices. Forwarding is not among it: it stays on for the next network
// (deploy/components/uninstall).
func traces(ctx context.Context, n *harness.Node) (string, error) {
	var all []string
	for _, line := range []string{
		"find /opt/cni/bin /etc/cni/net.d /sys/fs/bpf /run/tapir ! -type d",
		"nft list tables", "ip -4 route", "ip -6 route", "ip rule", "ip -br link",
	} {
		// find says with its exit code that /run/tapir is not there.
		out, err := n.Run(ctx, "bash", "-c", line+" 2>/dev/null || true")
		if err != nil {
			return "", err
		}
		for l := range strings.Lines(out) {
			// Tables of kube-proxy and portmap come and go with Services and host ports.
			if !strings.HasPrefix(l, "table ") || strings.Contains(l, "tapir") {
				all = append(all, l)
			}
		}
	}
	return strings.Join(all, ""), nil
}

// TestUninstall: what was installed goes while pods run, whose traffic does not stop; with the pods goes the rest. The node is as it was before.
func TestUninstall(t *testing.T) {
	c := up(t, harness.Options{Nodes: 2})
	var before []string
	for _, n := range c.Nodes {
		was, err := traces(t.Context(), n)
		if err != nil {
			t.Fatal(err)
		}
		before = append(before, was)
	}
	install(t, c, "cluster")
	if now, err := traces(t.Context(), c.Nodes[0]); err != nil || now == before[0] {
		t.Fatalf("an installed tapir has no traces, %v", err)
	}
	pods := run(t, c, probePod("asks", "node1"), probePod("answers", "node1"), probePod("vmanswers", "node1", guestIn(t, c)))
	streams := []func() (int, []error){
		stream(t, c, from(t, c, pods[0]), urlOf(addresses(t, pods[1])[0], probePort)),
		stream(t, c, from(t, c, pods[0]), urlOf(addresses(t, pods[2])[1], probePort)),
	}
	leave := filepath.Join(filepath.Dir(filepath.Dir(overlay(t, "cluster"))), "uninstall", "cluster")
	if out, err := kubectl(c, "apply -k "+leave); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	daemonsReady(t, c)
	// No new pod: there is no configuration, or where the runtime still needs one for DEL, one that refuses.
	for _, n := range c.Nodes {
		if err := c.Until(t.Context(), n.Name+" to be NotReady", func(ctx context.Context) error {
			if err := c.NodeReady(ctx, n.Name); err == nil {
				return errors.New("it is Ready")
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
	for _, stop := range streams {
		noneFailed(t, "while tapir was taken off", stop)
	}
	remove(t, c, pods...)
	settled(t, c)
	// The second time nothing needs the programs.
	if out, err := kubectl(c, "rollout restart daemonset tapird -n tapir-system"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	daemonsReady(t, c)
	if out, err := kubectl(c, "delete -k "+leave); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for i, n := range c.Nodes {
		if err := c.Until(t.Context(), n.Name+" as it was", func(ctx context.Context) error {
			now, err := traces(ctx, n)
			if diff := cmp.Diff(before[i], now); err != nil || diff != "" {
				return fmt.Errorf("(-want +got) %s, %w", diff, err)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
}

// TestUpgrade: the tapir of the commit before is replaced by this one, and the other way round, while pods of both exchange traffic.
func TestUpgrade(t *testing.T) {
	c := up(t, harness.Options{Nodes: 2})
	previous := filepath.Join(os.Getenv(imagesEnv), "previous-deploy", "overlays", "cluster")
	if _, err := os.Stat(previous); err != nil {
		t.Fatalf("%v; \"tools/images.sh bin/images previous\" makes it", err)
	}
	apply := func(path string) string {
		if out, err := kubectl(c, "apply -k "+path); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		daemonsReady(t, c)
		if _, err := c.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		var sum string
		// It is installed before tapird is Ready.
		for _, n := range c.Nodes {
			out, err := n.Run(t.Context(), "sha256sum", "/opt/cni/bin/tapir")
			if err != nil || sum != "" && out != sum {
				t.Fatalf("%s's plugin: %s, another node's: %s, %v", n.Name, out, sum, err)
			}
			sum = out
		}
		return sum
	}
	old := apply(previous)
	pods := run(t, c, probePod("asks", "node1"), probePod("answers", "node2"), probePod("vmanswers", "node1", guestIn(t, c), annotated("tapir.dev/xdp", "auto")))
	var streams []func() (int, []error)
	for _, p := range pods[1:] {
		for _, target := range addresses(t, p) {
			streams = append(streams, stream(t, c, from(t, c, pods[0]), urlOf(target, probePort)))
		}
	}
	for i, path := range []string{overlay(t, "cluster"), previous} {
		sum := apply(path)
		if (sum == old) != (path == previous) {
			t.Errorf("the plugin after %s: %s, that of the commit before: %s", path, sum, old)
		}
		name := fmt.Sprint("new", i)
		fresh := run(t, c, probePod(name, "node2"))
		for _, target := range addresses(t, fresh[0]) {
			eventually(t, c, name, from(t, c, pods[0]), urlOf(target, probePort), answeredBy(name))
		}
	}
	for _, stop := range streams {
		noneFailed(t, "while tapir was replaced", stop)
	}
	remove(t, c, pods...)
	remove(t, c, probePod("new0", ""), probePod("new1", ""))
	settled(t, c)
}
