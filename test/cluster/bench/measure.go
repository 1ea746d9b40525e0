package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/tapir-cni/tapir/test/bench/goal"
	"github.com/tapir-cni/tapir/test/cluster/harness"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// names of the networks, in the order of [Report.Networks].
var names = [2]string{"bridge + host-local", "tapir"}

// patience bounds a round.
const patience = 3 * time.Minute

func (o *options) measure(ctx context.Context, c *harness.Cluster, report *Report) error {
	for i := range names {
		report.Networks[i].Name = names[i]
	}
	for round := range o.rounds + 1 {
		for turn := range names {
			which := (round + turn) % len(names)
			took, err := o.round(ctx, c, which == 1, fmt.Sprintf("r%d-%d", round, which))
			if err != nil {
				return fmt.Errorf("round %d with %s: %w", round, names[which], err)
			}
			fmt.Fprintf(os.Stderr, "bench-cluster: round %d of %d, %s: %d pods, median %.2f s, the last after %.2f s\n",
				round, o.rounds, names[which], o.pods, took.Quantile(0.5), took.Quantile(1))
			if round > 0 {
				n := &report.Networks[which]
				n.Rounds = append(n.Rounds, took)
			}
		}
	}
	return nil
}

// round gives the seconds of each pod.
func (o *options) round(ctx context.Context, c *harness.Cluster, tapir bool, name string) (took goal.Sample, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	pods := c.Client.CoreV1().Pods("default")
	selector := metav1.ListOptions{LabelSelector: "round=" + name}
	w, err := pods.Watch(ctx, selector)
	if err != nil {
		return nil, err
	}
	defer func() { w.Stop() }()
	var mu sync.Mutex
	began := make(map[string]time.Time, o.pods)
	var creating sync.WaitGroup
	failed := make(chan error, o.pods)
	for i := range o.pods {
		creating.Go(func() {
			pod := o.pod(fmt.Sprintf("%s-%d", name, i), name, tapir)
			mu.Lock()
			began[pod.Name] = time.Now()
			mu.Unlock()
			if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
				failed <- err
			}
		})
	}
	running := make(map[string]bool, o.pods)
	for len(running) < o.pods {
		select {
		case err = <-failed:
			return nil, err
		case e, ok := <-w.ResultChan():
			if !ok || e.Type == watch.Error { // a new one begins with what is there
				if ctx.Err() != nil {
					return nil, fmt.Errorf("%d of %d pods are Running: %w", len(running), o.pods, ctx.Err())
				}
				w.Stop()
				if w, err = pods.Watch(ctx, selector); err != nil {
					return nil, err
				}
				continue
			}
			pod, isPod := e.Object.(*corev1.Pod)
			if !isPod || pod.Status.Phase != corev1.PodRunning || running[pod.Name] {
				continue
			}
			running[pod.Name] = true
			mu.Lock()
			took = append(took, time.Since(began[pod.Name]).Seconds())
			mu.Unlock()
		}
	}
	creating.Wait()
	now := int64(0)
	if err := pods.DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, selector); err != nil {
		return nil, err
	}
	return took, c.Until(ctx, "the end of a round's pods", func(ctx context.Context) error {
		for _, n := range c.Nodes { // the API server forgets them before their sandboxes are gone
			out, err := n.Run(ctx, "ls", "/run/netns")
			if err != nil {
				return err
			}
			if out != "" {
				return fmt.Errorf("%s has sandboxes left: %s", n.Name, out)
			}
		}
		return nil
	})
}

func (o *options) pod(name, round string, tapir bool) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"round": round}},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "pause", Image: "localhost/pause:1", ImagePullPolicy: corev1.PullNever}},
			// Half of the pods on each node, whatever the scheduler thinks of the round before.
			TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{
				MaxSkew: 1, TopologyKey: "kubernetes.io/hostname", WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"round": round}},
			}},
		},
	}
	if tapir {
		class := runtimeClass
		p.Spec.RuntimeClassName = &class
	}
	return p
}
