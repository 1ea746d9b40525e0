package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// installPrograms copies the files of a folder to the node's /opt/cni/bin.
func (n *Node) installPrograms(folder string) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.Type().IsRegular() || e.Name()[0] == '.' {
			continue
		}
		data, err := os.ReadFile(filepath.Join(folder, e.Name()))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(n.CNIBin(), e.Name()), data, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// Bridge is a conflist of bridge and host-local, which tapir is compared with.
func Bridge(podCIDRs []string) (string, error) {
	var ranges [][]map[string]string
	for _, cidr := range podCIDRs {
		ranges = append(ranges, []map[string]string{{"subnet": cidr}})
	}
	list, err := json.MarshalIndent(map[string]any{
		"cniVersion": "1.1.0", "name": "bridge",
		"plugins": []any{
			map[string]any{
				"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
				"ipam": map[string]any{
					"type": "host-local", "dataDir": "/run/cni-ipam", "ranges": ranges,
					"routes": []any{map[string]string{"dst": "0.0.0.0/0"}, map[string]string{"dst": "::/0"}},
				},
			},
			map[string]any{"type": "portmap", "capabilities": map[string]bool{"portMappings": true}},
		},
	}, "", "  ")
	return string(list), err
}

// InstallByHand does on each node what a CNI's agent does: forwarding, routes to the other nodes' pods, and last the conflist that conflist gives
// for the node's podCIDRs. The conflist's programs must be in [Node.CNIBin] already.
func (c *Cluster) InstallByHand(ctx context.Context, conflist func(podCIDRs []string) (string, error)) error {
	list, err := c.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, n := range c.Nodes {
		if err := commands("ip netns exec " + n.netns + " sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1"); err != nil {
			return err
		}
		for _, other := range list.Items {
			if err := n.routeTo(&other); err != nil {
				return err
			}
			if other.Name != n.Name {
				continue
			}
			text, err := conflist(other.Spec.PodCIDRs)
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(n.CNIConf(), "10-by-hand.conflist"), []byte(text), 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// routeTo sends traffic to the other node's pods through that node.
func (n *Node) routeTo(other *corev1.Node) error {
	if other.Name == n.Name {
		return nil
	}
	for _, cidr := range other.Spec.PodCIDRs {
		prefix, err := netip.ParsePrefix(cidr)
		if err != nil {
			return err
		}
		via := ""
		for _, a := range other.Status.Addresses {
			if ip, err := netip.ParseAddr(a.Address); err == nil && a.Type == corev1.NodeInternalIP && ip.Is4() == prefix.Addr().Is4() {
				via = a.Address
			}
		}
		if via == "" {
			return fmt.Errorf("node %s has no InternalIP of the family of %s", other.Name, cidr)
		}
		if err := command("ip", "-n", n.netns, "route", "replace", cidr, "via", via); err != nil {
			return err
		}
	}
	return nil
}

// RouteControl gives the control plane the routes to pods that it has where it runs on a node of the cluster, until UnrouteControl.
func (c *Cluster) RouteControl(ctx context.Context) error {
	list, err := c.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, n := range list.Items {
		if err := (&Node{netns: c.netns}).routeTo(&n); err != nil {
			return err
		}
	}
	return nil
}

// UnrouteControl takes the routes of RouteControl away.
func (c *Cluster) UnrouteControl() error {
	for _, family := range []string{"-4", "-6"} {
		if err := command("ip", "-n", c.netns, family, "route", "flush", "proto", "boot", "scope", "global"); err != nil {
			return err
		}
	}
	return nil
}
