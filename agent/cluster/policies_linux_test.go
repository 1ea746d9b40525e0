package cluster

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/tapir-cni/tapir/agent/watch"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/state"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// attachments are a node's, without a node.
type attachments struct {
	mu    sync.Mutex
	all   []*watch.Attachment
	subs  []func(watch.Event)
	calls []string
}

func (a *attachments) Snapshot() []*watch.Attachment {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.all)
}

func (a *attachments) Subscribe(f func(watch.Event)) (cancel func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.subs = append(a.subs, f)
	return func() {}
}

func (a *attachments) add(namespace, pod, mode string) {
	one := &watch.Attachment{ID: watch.ID{Key: state.Key{Network: "tapir", ContainerID: pod, IfName: "eth0"}}}
	one.Record.Key, one.Record.PodNamespace, one.Record.PodName, one.Record.XDP.Mode = one.Key, namespace, pod, mode
	a.mu.Lock()
	a.all = append(a.all, one)
	subs := slices.Clone(a.subs)
	a.mu.Unlock()
	for _, f := range subs {
		f(watch.Event{Kind: watch.Added, After: one})
	}
}

func (a *attachments) flag(_ context.Context, id watch.ID, selected bool) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, one := range a.all {
		if one.ID == id {
			next := *one
			next.Record.XDP.Policy = selected
			a.all[i] = &next
		}
	}
	a.calls = append(a.calls, fmt.Sprintf("%s %t", id.ContainerID, selected))
	return nil
}

func (a *attachments) want(t *testing.T, flagged ...string) {
	t.Helper()
	testnode.Eventually(t, patience, func() error {
		var got []string
		for _, one := range a.Snapshot() {
			if one.Record.XDP.Policy {
				got = append(got, one.Record.PodName)
			}
		}
		if !slices.Equal(got, flagged) {
			return fmt.Errorf("want %q off the shortcut, got %q", flagged, got)
		}
		return nil
	})
}

func policy(namespace, name string, selector metav1.LabelSelector) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: networkingv1.NetworkPolicySpec{PodSelector: selector}}
}

func podOf(namespace, name string, labels map[string]string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels}, Spec: corev1.PodSpec{NodeName: "own"}}
}

func TestPodsThatAPolicySelectsAreKeptOffTheShortcut(t *testing.T) {
	client := fake.NewClientset(podOf("a", "web", map[string]string{"app": "web"}), podOf("a", "db", map[string]string{"app": "db"}), podOf("b", "web2", map[string]string{"app": "web"}))
	all := &attachments{}
	all.add("a", "web", "native")
	all.add("a", "db", "native")
	all.add("b", "web2", "native")
	c, err := New(Config{Options: Options{Enabled: true, Node: "own"}, Client: client, Attachments: all, Flag: all.flag})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { _ = c.followPolicies(ctx, client) })
	t.Cleanup(func() { cancel(); done.Wait() })

	web := metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	rules := client.NetworkingV1()
	if _, err := rules.NetworkPolicies("a").Create(ctx, policy("a", "one", web), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	all.want(t, "web")

	// One that the API server does not know yet, in a namespace with policies and in one without.
	all.add("a", "new", "native")
	all.add("c", "free", "native")
	all.want(t, "web", "new")
	if _, err := client.CoreV1().Pods("a").Create(ctx, podOf("a", "new", map[string]string{"app": "batch"}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	all.want(t, "web")

	wide := policy("a", "one", metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpIn, Values: []string{"db", "batch"}}}})
	if _, err := rules.NetworkPolicies("a").Update(ctx, wide, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	all.want(t, "db", "new")
	if _, err := rules.NetworkPolicies("b").Create(ctx, policy("b", "everything", metav1.LabelSelector{}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	all.want(t, "db", "web2", "new")
	relabelled := podOf("a", "db", map[string]string{"app": "other"})
	if _, err := client.CoreV1().Pods("a").Update(ctx, relabelled, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	all.want(t, "web2", "new")
	if err := rules.NetworkPolicies("a").Delete(ctx, "one", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	all.want(t, "web2")
}

// Where nothing takes part in the shortcut nothing is asked of the API server.
func TestWithoutTheShortcutNobodyAsksForPolicies(t *testing.T) {
	client := fake.NewClientset(podOf("a", "web", nil), policy("a", "all", metav1.LabelSelector{}))
	all := &attachments{}
	all.add("a", "web", "")
	c, err := New(Config{Options: Options{Enabled: true, Node: "own"}, Client: client, Attachments: all, Flag: all.flag})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { _ = c.followPolicies(ctx, client) })
	t.Cleanup(func() { cancel(); done.Wait() })
	testnode.Eventually(t, patience, func() error {
		all.mu.Lock()
		defer all.mu.Unlock()
		if len(all.subs) == 0 {
			return fmt.Errorf("want it to listen for attachments")
		}
		return nil
	})
	if n := len(client.Actions()); n != 0 {
		t.Errorf("want no request, got %d", n)
	}
	all.add("a", "web", "generic")
	all.want(t, "web", "web")
}
