package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/tapir-cni/tapir/internal/microvm/vmtest"
	"github.com/tapir-cni/tapir/test/cluster/harness"
)

// namespace of the tests' pods.
const namespace = "default"

// probePort is where probe serves.
const probePort = 8080

// probePod is a pod of image probe on a node (empty: any), Ready when it answers.
func probePod(name, node string, changes ...func(*corev1.Pod)) *corev1.Pod {
	one := int64(1)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}, Annotations: map[string]string{}},
		Spec: corev1.PodSpec{
			NodeName: node, TerminationGracePeriodSeconds: &one,
			Containers: []corev1.Container{{
				Name: "probe", Image: "localhost/probe:1", ImagePullPolicy: corev1.PullNever, Args: []string{"serve"},
				ReadinessProbe: &corev1.Probe{
					ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(probePort)}},
					PeriodSeconds: 1, FailureThreshold: 3, TimeoutSeconds: 2,
				},
			}},
		},
	}
	for _, change := range changes {
		change(p)
	}
	return p
}

// annotated adds annotations, by pairs.
func annotated(pairs ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for pair := range slices.Chunk(pairs, 2) {
			p.Annotations[pair[0]] = pair[1]
		}
	}
}

// guestIn makes the pod a microVM's: the guest runs probe at the pod's addresses.
func guestIn(t *testing.T, c *harness.Cluster) func(*corev1.Pod) {
	t.Helper()
	image, bin := vmtest.Image(t)
	change, err := c.Guest(image, bin)
	if err != nil {
		t.Fatal(err)
	}
	return change
}

// run creates the pods and gives them when they are Ready. They are deleted at the test's end.
func run(t *testing.T, c *harness.Cluster, pods ...*corev1.Pod) []*corev1.Pod {
	t.Helper()
	api := c.Client.CoreV1().Pods(namespace)
	for _, p := range pods {
		if _, err := api.Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { remove(t, c, pods...) })
	for i, p := range pods {
		pods[i] = ready(t, c, p.Name)
	}
	return pods
}

// ready waits for a pod, with its addresses.
func ready(t *testing.T, c *harness.Cluster, name string) *corev1.Pod {
	t.Helper()
	var pod *corev1.Pod
	if err := c.Until(t.Context(), "pod "+name, func(ctx context.Context) (err error) {
		if pod, err = c.Client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		return podReady(pod)
	}); err != nil {
		t.Fatal(err)
	}
	return pod
}

func podReady(pod *corev1.Pod) error {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
			return nil
		}
	}
	return fmt.Errorf("pod %s is not Ready: %s %s %v", pod.Name, pod.Status.Phase, pod.Status.Reason, pod.Status.ContainerStatuses)
}

// remove deletes pods and waits until they are gone, and with them what their nodes had for them.
func remove(t *testing.T, c *harness.Cluster, pods ...*corev1.Pod) {
	t.Helper()
	ctx := context.Background() // also in a cleanup
	api := c.Client.CoreV1().Pods(namespace)
	for _, p := range pods {
		if err := api.Delete(ctx, p.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	}
	for _, p := range pods {
		if err := c.Until(ctx, "end of pod "+p.Name, func(ctx context.Context) error {
			_, err := api.Get(ctx, p.Name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return errors.Join(errors.New("it is there"), err)
		}); err != nil {
			t.Error(err)
		}
	}
}

// addresses are the pod's, IPv4 first.
func addresses(t *testing.T, p *corev1.Pod) []netip.Addr {
	t.Helper()
	var all []netip.Addr
	for _, ip := range p.Status.PodIPs {
		all = append(all, netip.MustParseAddr(ip.IP))
	}
	slices.SortFunc(all, netip.Addr.Compare)
	if len(all) != 2 || !all[0].Is4() || !all[1].Is6() {
		t.Fatalf("pod %s: want an address of each family, got %v", p.Name, all)
	}
	return all
}

func urlOf(addr netip.Addr, port int) string {
	return fmt.Sprintf("http://%s/", netip.AddrPortFrom(addr, uint16(port)))
}

// answer is what probe's server said.
type answer struct {
	host     string
	from, at netip.AddrPort
}

func parseAnswer(text string) (a answer, err error) {
	var from, at string
	if _, err := fmt.Sscanf(text, "host=%s from=%s at=%s", &a.host, &from, &at); err != nil {
		return a, fmt.Errorf("answer %q: %w", text, err)
	}
	if a.from, err = netip.ParseAddrPort(from); err != nil {
		return a, err
	}
	a.at, err = netip.ParseAddrPort(at)
	a.from = netip.AddrPortFrom(a.from.Addr().Unmap(), a.from.Port())
	a.at = netip.AddrPortFrom(a.at.Addr().Unmap(), a.at.Port())
	return a, err
}

type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// fetch asks url over connections of dial.
func fetch(ctx context.Context, dial dialer, url string) (string, error) {
	transport := &http.Transport{DialContext: dial, DisableKeepAlives: true}
	client := http.Client{Transport: transport, Timeout: 10 * time.Second}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, strings.TrimSpace(string(body)))
	}
	return string(body), err
}

// from gives what asks for target from inside a pod: its own server, which its node asks.
func from(t *testing.T, c *harness.Cluster, p *corev1.Pod) func(ctx context.Context, target string) (answer, error) {
	t.Helper()
	i := slices.IndexFunc(c.Nodes, func(n *harness.Node) bool { return n.Name == p.Spec.NodeName })
	own := urlOf(addresses(t, p)[0], probePort)
	return func(ctx context.Context, target string) (answer, error) {
		text, err := fetch(ctx, c.Nodes[i].Dial, own+"get?url="+url.QueryEscape(target))
		if err != nil {
			return answer{}, fmt.Errorf("%s asks %s: %w", p.Name, target, err)
		}
		return parseAnswer(text)
	}
}

// outside asks from the machine beside the nodes.
func outside(c *harness.Cluster) func(ctx context.Context, target string) (answer, error) {
	return func(ctx context.Context, target string) (answer, error) {
		text, err := fetch(ctx, c.Dial, target)
		if err != nil {
			return answer{}, fmt.Errorf("from outside to %s: %w", target, err)
		}
		return parseAnswer(text)
	}
}

// eventually asks until the answer is as wanted: rules and routes follow what they are made of.
func eventually(t *testing.T, c *harness.Cluster, what string, ask func(context.Context, string) (answer, error), target string, want func(answer) error) {
	t.Helper()
	if err := c.Until(t.Context(), what, func(ctx context.Context) error {
		a, err := ask(ctx, target)
		if err != nil {
			return err
		}
		return want(a)
	}); err != nil {
		t.Error(err)
	}
}

// answeredBy wants one of these hosts.
func answeredBy(hosts ...string) func(answer) error {
	return func(a answer) error {
		if !slices.Contains(hosts, a.host) {
			return fmt.Errorf("want an answer of %q, got %+v", hosts, a)
		}
		return nil
	}
}

// seenAs wants the peer's address, unchanged on the way.
func seenAs(want netip.Addr) func(answer) error {
	return func(a answer) error {
		if a.from.Addr() != want {
			return fmt.Errorf("want to be seen as %s, got %+v", want, a)
		}
		return nil
	}
}
