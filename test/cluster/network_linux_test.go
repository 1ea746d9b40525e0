package cluster_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/tapir-cni/tapir/test/cluster/harness"
)

// testPods: plain pods and the guests of microVM pods reach one another in both families, on one node and on two, and see each other's own address.
func testPods(t *testing.T, c *harness.Cluster) {
	guest := guestIn(t, c)
	pods := run(t, c,
		probePod("plain1", "node1"), probePod("plain2", "node2"), probePod("guest1", "node1", guest, annotated("tapir.dev/xdp", "auto")),
		probePod("guest2", "node1", guest, annotated("tapir.dev/xdp", "auto")), probePod("guest3", "node2", guest, annotated("tapir.dev/queues", "2")))
	for _, client := range pods {
		for _, server := range pods {
			for family, target := range addresses(t, server) {
				eventually(t, c, fmt.Sprint(client.Name, " to ", server.Name, " at ", target), from(t, c, client), urlOf(target, probePort), func(a answer) error {
					if a.at.Addr() != target {
						return fmt.Errorf("want the answer of %s, got %+v", target, a)
					}
					return seenAs(addresses(t, client)[family])(a)
				})
			}
		}
	}
	if taken, err := shortcutTaken(t, c.Nodes[0]); err != nil || taken == 0 {
		out, _ := tapirctl(t.Context(), c.Nodes[0], "xdp", "-o", "json") // what is wrong is said already
		t.Errorf("two guests of node1 with tapir.dev/xdp: want frames on the shortcut, got %d, %v\n%s", taken, err, out)
	}
	if taken, err := shortcutTaken(t, c.Nodes[1]); err != nil || taken != 0 {
		t.Errorf("node2, where no pod asked for it: want no frames on the shortcut, got %d, %v", taken, err)
	}
	// Instead of port-forward, which dials the pod netns's loopback: the API server reaches pods where it is on a node of the cluster.
	if err := c.RouteControl(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.UnrouteControl(); err != nil {
			t.Error(err)
		}
	}()
	for _, p := range pods[2:] {
		out, err := kubectl(c, fmt.Sprintf("get --raw /api/v1/namespaces/%s/pods/%s:%d/proxy/", namespace, p.Name, probePort))
		if a, parseErr := parseAnswer(out); err != nil || parseErr != nil || a.host != "guest" {
			t.Errorf("the API server's proxy to %s: want the guest's answer, got %q, %v, %v", p.Name, out, err, parseErr)
		}
	}
}

// shortcutTaken are the frames that took the shortcut on a node.
func shortcutTaken(t *testing.T, n *harness.Node) (taken int, err error) {
	t.Helper()
	out, err := tapirctl(t.Context(), n, "xdp", "-o", "json")
	if err != nil {
		return 0, err
	}
	var rows []struct{ Taken int }
	if err := json.Unmarshal([]byte(out), &rows); err != nil {
		return 0, fmt.Errorf("%w: %s", err, out)
	}
	for _, row := range rows {
		taken += row.Taken
	}
	return taken, nil
}

// testServices: cluster addresses and node ports in both families, for clients on the server's node, on the other one, the server itself, guests
// with the shortcut and without, and from outside.
func testServices(t *testing.T, c *harness.Cluster) {
	guest := guestIn(t, c)
	pods := run(t, c,
		probePod("server", "node1"), probePod("vmserver", "node2", guest), probePod("near", "node1"), probePod("far", "node2"),
		probePod("vmclient", "node1", guest), probePod("vmdirect", "node2", guest, annotated("tapir.dev/xdp", "auto")))
	for server, host := range map[*corev1.Pod]string{pods[0]: "server", pods[1]: "guest"} {
		service := serve(t, c, server.Name)
		for _, ip := range service.Spec.ClusterIPs {
			target := urlOf(netip.MustParseAddr(ip), 80)
			for _, client := range pods {
				eventually(t, c, client.Name+" to the service "+target, from(t, c, client), target, answeredBy(host))
			}
		}
		for _, node := range c.Nodes {
			for _, ip := range []string{node.IPv4, node.IPv6} {
				target := urlOf(netip.MustParseAddr(ip), int(service.Spec.Ports[0].NodePort))
				eventually(t, c, "from outside to "+target, outside(c), target, answeredBy(host))
			}
		}
	}
}

// serve makes a service of the pod with a port of nodes.
func serve(t *testing.T, c *harness.Cluster, app string) *corev1.Service {
	t.Helper()
	policy := corev1.IPFamilyPolicyRequireDualStack
	service, err := c.Client.CoreV1().Services(namespace).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: app},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeNodePort, IPFamilyPolicy: &policy, Selector: map[string]string{"app": app},
			Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(probePort)}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := kubectl(c, "delete service "+app); err != nil {
			t.Error(err)
		}
	})
	return service
}

// testHostPort: a port of the node leads to the pod, from outside and from a pod on the other node; before and afterwards to nothing.
func testHostPort(t *testing.T, c *harness.Cluster) {
	const port = 18080
	target := urlOf(netip.MustParseAddr(c.Nodes[0].IPv4), port)
	if _, err := outside(c)(t.Context(), target); err == nil {
		t.Fatal("the port answers without a pod")
	}
	t.Run("pod", func(t *testing.T) {
		pods := run(t, c, probePod("published", "node1", func(p *corev1.Pod) {
			p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: probePort, HostPort: port}}
		}), probePod("other", "node2"))
		eventually(t, c, "from outside to the host port", outside(c), target, answeredBy("published"))
		eventually(t, c, "a pod to the host port of the other node", from(t, c, pods[1]), target, answeredBy("published"))
		v6 := urlOf(netip.MustParseAddr(c.Nodes[0].IPv6), port)
		eventually(t, c, "from outside to the host port, IPv6", outside(c), v6, answeredBy("published"))
	})
	if _, err := outside(c)(t.Context(), target); err == nil {
		t.Error("the port answers after its pod")
	}
}

// testMasquerade: outside the cluster a pod is seen as its node; that the pod is reached as itself is testPods' word.
func testMasquerade(t *testing.T, c *harness.Cluster) {
	pods := run(t, c, probePod("leaver", "node1"), probePod("vmleaver", "node2", guestIn(t, c)))
	for _, listen := range []string{"10.200.0.1:8081", "[fd00:200::1]:8081"} {
		listener, err := c.Listen(t.Context(), "tcp", listen)
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
			_, _ = fmt.Fprintf(w, "host=outside from=%s at=%s\n", r.RemoteAddr, local)
		})}
		go func() { _ = server.Serve(listener) }() // until Close
		t.Cleanup(func() { _ = server.Close() })
		for i, p := range pods {
			want := netip.MustParseAddr(c.Nodes[i].IPv4)
			if listen[0] == '[' {
				want = netip.MustParseAddr(c.Nodes[i].IPv6)
			}
			eventually(t, c, p.Name+" to the outside", from(t, c, p), "http://"+listen+"/", seenAs(want))
		}
	}
}
