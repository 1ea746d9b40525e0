package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/tapir-cni/tapir/internal/microvm"
	"github.com/tapir-cni/tapir/test/cluster/harness"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// measureGuests starts one microVM pod after the other and takes the time from its creation to the guest's first answer, and the guest's own time
// of boot.
func (o *options) measureGuests(ctx context.Context, c *harness.Cluster, report *Report) error {
	image, err := microvm.EnsureImage(ctx, microvm.ImageOptions{Agent: filepath.Join(o.tapir, "tapir-guest")}, func(s string) { fmt.Fprintln(os.Stderr, "bench-cluster:", s) })
	if err != nil {
		return err
	}
	change, err := c.Guest(image, o.tapir)
	if err != nil {
		return err
	}
	for round := range o.guests + 1 {
		answered, booted, err := o.guest(ctx, c, fmt.Sprintf("guest%d", round), change)
		if err != nil {
			return fmt.Errorf("microVM pod %d: %w", round, err)
		}
		fmt.Fprintf(os.Stderr, "bench-cluster: microVM pod %d of %d: answers %.2f s after its creation, %.2f s of them its own boot\n", round, o.guests, answered, booted)
		if round > 0 { // the first fills caches
			report.Answered = append(report.Answered, answered)
			report.Booted = append(report.Booted, booted)
			report.Beyond = append(report.Beyond, answered-booted)
		}
	}
	return nil
}

// guest gives both times of one pod, in seconds.
func (o *options) guest(ctx context.Context, c *harness.Cluster, name string, change func(*corev1.Pod)) (answered, booted float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	pod := o.pod(name, name, true)
	pod.Spec.Containers[0].Name = "probe"
	change(pod)
	pods := c.Client.CoreV1().Pods("default")
	began := time.Now()
	if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return 0, 0, err
	}
	defer func() {
		now := int64(0)
		_ = pods.Delete(context.Background(), name, metav1.DeleteOptions{GracePeriodSeconds: &now}) // the cluster ends soon
	}()
	var at string
	var where netip.Addr
	err = c.Until(ctx, "the guest's answer", func(ctx context.Context) error {
		p, failed := pods.Get(ctx, name, metav1.GetOptions{})
		if failed != nil {
			return failed
		}
		addr, failed := netip.ParseAddr(p.Status.PodIP)
		if failed != nil {
			return fmt.Errorf("it has no address: %s %s", p.Status.Phase, p.Status.Reason)
		}
		at, where = p.Spec.NodeName, addr
		_, failed = ask(ctx, c, at, where, "/")
		return failed
	})
	if err != nil {
		return 0, 0, err
	}
	answered = time.Since(began).Seconds()
	text, err := ask(ctx, c, at, where, "/up")
	if err != nil {
		return 0, 0, err
	}
	booted, err = strconv.ParseFloat(strings.TrimSpace(text), 64)
	return answered, booted, err
}

// ask asks the guest from its node.
func ask(ctx context.Context, c *harness.Cluster, node string, addr netip.Addr, path string) (string, error) {
	for _, n := range c.Nodes {
		if n.Name != node {
			continue
		}
		client := http.Client{Timeout: 200 * time.Millisecond, Transport: &http.Transport{DialContext: n.Dial, DisableKeepAlives: true}}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+netip.AddrPortFrom(addr, 8080).String()+path, nil)
		if err != nil {
			return "", err
		}
		r, err := client.Do(req)
		if err != nil {
			return "", err
		}
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		return string(body), err
	}
	return "", fmt.Errorf("no node %q", node)
}
