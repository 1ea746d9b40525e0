package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/tapir-cni/tapir/test/cluster/harness"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// runtimeClass is of pods on tapir: the nodes' handler of that name has a CNI folder of its own.
const runtimeClass = "tapir"

// prepare puts tapir's programs and configuration onto a node.
func (o *options) prepare(n *harness.Node) error {
	for _, name := range []string{"tapir", "tapir-ipam"} {
		data, err := os.ReadFile(filepath.Join(o.tapir, name))
		if err != nil {
			return fmt.Errorf("%w; run \"make build\"", err)
		}
		if err := os.WriteFile(filepath.Join(n.CNIBin(), name), data, 0o755); err != nil {
			return err
		}
	}
	number, err := strconv.Atoi(strings.TrimPrefix(n.Name, "node"))
	if err != nil {
		return err
	}
	list, err := json.MarshalIndent(map[string]any{
		"cniVersion": "1.1.0", "name": "tapir",
		"plugins": []any{map[string]any{
			"type": "tapir", "ipam": map[string]any{
				"type":   "tapir-ipam",
				"ranges": [][]map[string]string{{{"subnet": fmt.Sprintf("10.245.%d.0/24", number)}}, {{"subnet": fmt.Sprintf("fd00:245:0:%d::/64", number)}}},
				"routes": []map[string]string{{"dst": "0.0.0.0/0"}, {"dst": "::/0"}}, "reuseDelay": "0s",
			},
		}, map[string]any{"type": "portmap", "capabilities": map[string]bool{"portMappings": true}}},
	}, "", "  ")
	if err != nil {
		return err
	}
	folder := filepath.Join(n.CNIConf(), "tapir.d")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, "10-tapir.conflist"), list, 0o644)
}

// networks makes both usable: bridge as the nodes' default, tapir by its RuntimeClass, with a tapird on each node.
func (o *options) networks(ctx context.Context, c *harness.Cluster) error {
	if err := c.InstallByHand(ctx, harness.Bridge); err != nil {
		return err
	}
	if _, err := c.Ready(ctx); err != nil {
		return err
	}
	class := &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: runtimeClass}, Handler: runtimeClass}
	if _, err := c.Client.NodeV1().RuntimeClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
		return err
	}
	for _, n := range c.Nodes {
		// It ends with the node.
		start := fmt.Sprintf("%s --criEndpoint >/var/log/tapird.log 2>&1 &", filepath.Join(o.tapir, "tapird"))
		start = strings.Replace(start, "--criEndpoint", "--cri-endpoint unix:///run/containerd/containerd.sock", 1)
		if _, err := n.Run(ctx, "sh", "-c", start); err != nil {
			return err
		}
	}
	return nil
}
