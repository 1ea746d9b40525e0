package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tapir-cni/tapir/agent/watch"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Attachments are the node's, as this package wants them. *watch.Watcher has them.
type Attachments interface {
	Snapshot() []*watch.Attachment
	Subscribe(f func(watch.Event)) (cancel func())
}

// FlagFunc keeps an attachment's frames off the shortcut, or lets them on it again.
type FlagFunc func(ctx context.Context, id watch.ID, selected bool) error

// selection keeps the pods of this node that a NetworkPolicy selects off the shortcut.
type selection struct {
	c    *Cluster
	wake chan struct{}

	mu       sync.Mutex
	policies policies
	pods     map[podName]labels.Set // of this node
}

// takesPart tells whether an attachment of the node may send frames past the node's forwarding.
func takesPart(all []*watch.Attachment) bool {
	for _, a := range all {
		if a.Record.XDP.Mode != "" || a.Record.XDP.Wanted != "" {
			return true
		}
	}
	return false
}

// followPolicies does its work while one is to be done: always where the options say on, else while an attachment takes part in the shortcut.
// Where none does, nothing is asked of the API server.
func (c *Cluster) followPolicies(ctx context.Context, client kubernetes.Interface) error {
	if c.c.Attachments == nil || c.c.Flag == nil || c.c.Policies == PoliciesOff {
		<-ctx.Done()
		return ctx.Err()
	}
	s := &selection{c: c, wake: make(chan struct{}, 1), policies: policies{}, pods: map[podName]labels.Set{}}
	defer c.c.Attachments.Subscribe(func(e watch.Event) {
		if e.Kind == watch.Added || e.Kind == watch.Changed {
			s.poke()
		}
	})()
	for c.c.Policies != PoliciesOn && !takesPart(c.c.Attachments.Snapshot()) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.wake:
		}
	}
	return s.run(ctx, client)
}

func (s *selection) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// slimPod drops of a pod and of a policy what nobody here reads.
func slimPod(obj any) (any, error) {
	switch o := obj.(type) {
	case *corev1.Pod:
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: o.Name, Namespace: o.Namespace, UID: o.UID, ResourceVersion: o.ResourceVersion, Labels: o.Labels}}, nil
	case *networkingv1.NetworkPolicy:
		return &networkingv1.NetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: o.Name, Namespace: o.Namespace, UID: o.UID, ResourceVersion: o.ResourceVersion},
			Spec:       networkingv1.NetworkPolicySpec{PodSelector: o.Spec.PodSelector},
		}, nil
	}
	return obj, nil
}

func (s *selection) run(ctx context.Context, client kubernetes.Interface) error {
	ctx, cancel := context.WithCancel(ctx)
	mine := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(slimPod),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", s.c.c.Node).String()
		}))
	everywhere := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(slimPod))
	defer everywhere.Shutdown()
	defer mine.Shutdown()
	defer cancel() // before Shutdown, which waits for the informers
	pods, rules := mine.Core().V1().Pods().Informer(), everywhere.Networking().V1().NetworkPolicies().Informer()
	_, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: s.take, UpdateFunc: func(_, o any) { s.take(o) }, DeleteFunc: s.drop})
	if err != nil {
		return err
	}
	_, err = rules.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: s.take, UpdateFunc: func(_, o any) { s.take(o) }, DeleteFunc: s.drop})
	if err != nil {
		return err
	}
	mine.Start(ctx.Done())
	everywhere.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), pods.HasSynced, rules.HasSynced) {
		return ctx.Err()
	}
	s.c.log.Info("following NetworkPolicies", "reason", "attachments of this node take part in the shortcut")
	s.poke()
	pause := firstPause
	retry := time.NewTimer(0)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.wake:
		case <-retry.C:
		}
		if err := s.apply(ctx); err != nil && ctx.Err() == nil {
			s.c.log.Warn("could not flag pods that a NetworkPolicy selects; trying again", "error", err, "after", pause)
			retry.Reset(pause)
			pause = min(2*pause, lastPause)
		} else {
			pause = firstPause
		}
	}
}

func (s *selection) take(obj any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch o := obj.(type) {
	case *corev1.Pod:
		s.pods[podName{o.Namespace, o.Name}] = o.Labels
	case *networkingv1.NetworkPolicy:
		s.policies.put(o)
	}
	s.poke()
}

func (s *selection) drop(obj any) {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch o := obj.(type) {
	case *corev1.Pod:
		delete(s.pods, podName{o.Namespace, o.Name})
	case *networkingv1.NetworkPolicy:
		delete(s.policies, podName{o.Namespace, o.Name})
	}
	s.poke()
}

// selected tells whether a policy selects the attachment's pod. Of a pod that is not known yet it is taken as selected where its namespace has
// policies: its record may be quicker than the API server.
func (s *selection) selected(a *watch.Attachment) bool {
	pod := podName{a.Record.PodNamespace, a.Record.PodName}
	if pod.name == "" {
		return false // no pod of the cluster's, as by cnitool
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	has, known := s.pods[pod]
	if !known {
		for key := range s.policies {
			if key.namespace == pod.namespace {
				return true
			}
		}
		return false
	}
	return s.policies.selects(pod, has)
}

// apply flags and unflags what is not as it should be.
func (s *selection) apply(ctx context.Context) error {
	var errs []error
	for _, a := range s.c.c.Attachments.Snapshot() {
		want := s.selected(a)
		if a.Record.XDP.Policy == want {
			continue
		}
		if err := s.c.c.Flag(ctx, a.ID, want); err != nil {
			errs = append(errs, fmt.Errorf("attachment %s: %w", a.Key, err))
			continue
		}
		s.c.log.Info("a NetworkPolicy decides about the shortcut", "attachment", a.Key.String(), "namespace", a.Record.PodNamespace, "pod", a.Record.PodName, "selected", want)
	}
	return errors.Join(errs...)
}
