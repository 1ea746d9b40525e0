package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// announce says on the Node, where the operator wants it, that the network is there.
func (c *Cluster) announce(ctx context.Context, client kubernetes.Interface) error {
	if !c.c.NetworkUnavailable && c.c.Taint == "" {
		return nil
	}
	ready := error(nil)
	if c.c.Install != nil {
		ready = c.c.Install.Ready()
	}
	node, err := client.CoreV1().Nodes().Get(ctx, c.c.Node, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read the Node %s: %w", c.c.Node, err)
	}
	if c.c.NetworkUnavailable {
		if err := c.condition(ctx, client, node, ready); err != nil {
			return err
		}
	}
	if c.c.Taint != "" && ready == nil {
		return c.untaint(ctx, client, node)
	}
	return nil
}

func (c *Cluster) condition(ctx context.Context, client kubernetes.Interface, node *corev1.Node, ready error) error {
	want := corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: "TapirIsInstalled", Message: "tapir is installed on this node"}
	if ready != nil {
		want.Status, want.Reason, want.Message = corev1.ConditionTrue, "TapirIsNotInstalled", ready.Error()
	}
	i := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == want.Type })
	if i >= 0 {
		now := node.Status.Conditions[i]
		if now.Status == want.Status && now.Reason == want.Reason && now.Message == want.Message {
			return nil
		}
	}
	want.LastTransitionTime, want.LastHeartbeatTime = metav1.Time{Time: time.Now()}, metav1.Time{Time: time.Now()}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{want}}})
	if err != nil {
		return err
	}
	if _, err := client.CoreV1().Nodes().Patch(ctx, c.c.Node, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("set the condition NetworkUnavailable of Node %s: %w", c.c.Node, err)
	}
	return nil
}

// untaint takes the operator's taint away. It is never put back: running pods have their network.
func (c *Cluster) untaint(ctx context.Context, client kubernetes.Interface, node *corev1.Node) error {
	left := slices.DeleteFunc(slices.Clone(node.Spec.Taints), func(t corev1.Taint) bool { return t.Key == c.c.Taint })
	if len(left) == len(node.Spec.Taints) {
		return nil
	}
	// The version makes it fail where somebody else was quicker; then it is tried again.
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": node.ResourceVersion}, "spec": map[string]any{"taints": left}})
	if err != nil {
		return err
	}
	if _, err := client.CoreV1().Nodes().Patch(ctx, c.c.Node, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("take the taint %q off Node %s: %w", c.c.Taint, c.c.Node, err)
	}
	c.log.Info("took the taint off the node", "taint", c.c.Taint)
	return nil
}
