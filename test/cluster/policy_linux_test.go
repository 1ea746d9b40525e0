package cluster_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tapir-cni/tapir/test/cluster/harness"
)

// kubeRouterEnv names the program that enforces NetworkPolicies in this test; test/kuberouter pins its version.
const kubeRouterEnv = "TAPIR_KUBEROUTER"

// enforce starts kube-router's policy controller on every node, and nothing else of it. It ends with the node.
func enforce(t *testing.T, c *harness.Cluster) {
	t.Helper()
	program := os.Getenv(kubeRouterEnv)
	if program == "" {
		t.Fatalf(`%s: want the program that "make test-cluster" builds`, kubeRouterEnv)
	}
	for _, n := range c.Nodes {
		line := fmt.Sprintf("%s --run-firewall=true --run-router=false --run-service-proxy=false --enable-cni=false --enable-ipv6=true --hostname-override=%s "+
			"--kubeconfig=%s --service-cluster-ip-range=%s --health-port=0 --metrics-port=0 >/var/log/kube-router.log 2>&1 &", program, n.Name, c.Kubeconfig(), harness.ServiceRanges)
		if _, err := n.Run(t.Context(), "sh", "-c", line); err != nil {
			t.Fatal(err)
		}
	}
}

// flagged tells whether an attachment of the pod's is kept off the shortcut.
func flagged(ctx context.Context, n *harness.Node, pod string) (bool, error) {
	out, err := tapirctl(ctx, n, "list", "-o", "json")
	if err != nil {
		return false, err
	}
	var rows []struct {
		PodName string `json:"podName"`
		XDP     struct {
			Policy bool `json:"policy"`
		} `json:"xdp"`
	}
	if err := json.Unmarshal([]byte(out), &rows); err != nil {
		return false, fmt.Errorf("%w: %s", err, out)
	}
	for _, r := range rows {
		if r.PodName == pod {
			return r.XDP.Policy, nil
		}
	}
	return false, fmt.Errorf("no attachment of pod %s in %s", pod, out)
}

// NetworkPolicies that another project enforces hold for guests too, with the shortcut on: tapird keeps the pods that they select off it.
func TestNetworkPolicies(t *testing.T) {
	c := up(t, harness.Options{Nodes: 2})
	install(t, c, "cluster")
	enforce(t, c)
	guest := guestIn(t, c)
	pods := run(t, c,
		probePod("friend", "node2"), probePod("stranger", "node2"),
		probePod("server", "node1", guest, annotated("tapir.dev/xdp", "auto")), probePod("neighbour", "node1", guest, annotated("tapir.dev/xdp", "auto")))
	friend, stranger, server, neighbour := pods[0], pods[1], pods[2], pods[3]
	reaches := func(client *corev1.Pod, yes bool) {
		t.Helper()
		ask := from(t, c, client)
		for _, at := range addresses(t, server) {
			if !yes && at.Is6() {
				continue // this kube-router drops nothing of IPv6, whatever the path; the flag, which is tapir's, is of both families
			}
			err := c.Until(t.Context(), fmt.Sprintf("%s to the server at %s, wanted %t", client.Name, at, yes), func(ctx context.Context) error {
				_, err := ask(ctx, urlOf(at, probePort))
				if !yes && err == nil {
					return errors.New("it answers")
				}
				if !yes {
					return nil
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		}
	}
	for _, client := range []*corev1.Pod{friend, stranger, neighbour} {
		reaches(client, true)
	}
	before, err := shortcutTaken(t, c.Nodes[0])
	if err != nil || before == 0 {
		why, _ := tapirctl(t.Context(), c.Nodes[0], "xdp") // for the message alone
		t.Fatalf("without policies: want frames between the guests on the shortcut, got %d, %v\n%s", before, err, why)
	}

	policies := c.Client.NetworkingV1().NetworkPolicies(namespace)
	only := &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "friends"},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "server"}},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{
				{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "friend"}}},
			}}},
		},
	}
	if _, err := policies.Create(t.Context(), only, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	wantFlag := func(want bool) {
		t.Helper()
		failed := c.Until(t.Context(), fmt.Sprintf("the server's flag to be %t", want), func(ctx context.Context) error {
			got, asked := flagged(ctx, c.Nodes[0], "server")
			if asked == nil && got != want {
				return fmt.Errorf("it is %t", got)
			}
			return asked
		})
		if failed != nil {
			t.Error(failed)
		}
	}
	wantFlag(true)
	reaches(stranger, false)
	reaches(neighbour, false) // by the shortcut it would get through
	reaches(friend, true)

	if err := policies.Delete(t.Context(), "friends", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	wantFlag(false)
	reaches(stranger, true)
	reaches(neighbour, true)
	after, err := shortcutTaken(t, c.Nodes[0])
	if err != nil || after <= before {
		t.Errorf("after the policy: want frames on the shortcut again, more than %d, got %d, %v", before, after, err)
	}
}
