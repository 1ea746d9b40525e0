package cluster

import (
	"context"

	"github.com/tapir-cni/tapir/agent/watch"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// RefusedFunc says why something that a pod asks for is refused although the pod has its network; empty where nothing is. What an ADD refuses
// the kubelet says itself.
type RefusedFunc func(a *watch.Attachment) string

// reasonRefused is that of the events.
const reasonRefused = "TapirRefused"

// tellRefusals writes an event on each pod of this node whose wish is refused, once a sandbox, until ctx ends.
func (c *Cluster) tellRefusals(ctx context.Context, client kubernetes.Interface) {
	if c.c.Attachments == nil || c.c.Refused == nil {
		return
	}
	wake := make(chan struct{}, 1)
	wake <- struct{}{}
	defer c.c.Attachments.Subscribe(func(e watch.Event) {
		if e.Kind == watch.Added || e.Kind == watch.Changed {
			select {
			case wake <- struct{}{}:
			default:
			}
		}
	})()
	told := map[watch.ID]string{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-wake:
		}
		now := map[watch.ID]string{}
		for _, a := range c.c.Attachments.Snapshot() {
			why := c.c.Refused(a)
			if why == "" || a.Record.PodName == "" {
				continue
			}
			if now[a.ID] = why; told[a.ID] != why {
				c.tellPod(ctx, client, a, why)
			}
		}
		told = now
	}
}

func (c *Cluster) tellPod(ctx context.Context, client kubernetes.Interface, a *watch.Attachment, why string) {
	c.log.Warn("refused what a pod asks for", "attachment", a.Key.String(), "namespace", a.Record.PodNamespace, "pod", a.Record.PodName, "reason", why)
	// An event belongs to a pod by its UID, which the record has not.
	pod, err := client.CoreV1().Pods(a.Record.PodNamespace).Get(ctx, a.Record.PodName, metav1.GetOptions{})
	if err != nil {
		c.log.Warn("could not tell a pod what is refused", "namespace", a.Record.PodNamespace, "pod", a.Record.PodName, "error", err)
		return
	}
	c.events.Event(&corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}, corev1.EventTypeWarning, reasonRefused, why)
}
