package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
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
		t, err := o.guest(ctx, c, fmt.Sprintf("guest%d", round), change)
		if err != nil {
			return fmt.Errorf("microVM pod %d: %w", round, err)
		}
		fmt.Fprintf(os.Stderr, "bench-cluster: microVM pod %d of %d: answers %.2f s after its creation, %.2f s after its power-on, %.2f s of them its kernel's\n",
			round, o.guests, t.answered, t.booted, t.kernel)
		if round > 0 { // the first fills caches
			report.Answered = append(report.Answered, t.answered)
			report.Booted = append(report.Booted, t.booted)
			report.Kernel = append(report.Kernel, t.kernel)
			report.Beyond = append(report.Beyond, t.answered-t.booted)
		}
	}
	return nil
}

// powerOn is what the pod says before it starts QEMU.
var powerOn = regexp.MustCompile(`the guest's power is on at (\d+) ms`)

// guestTimes are of one pod, in seconds.
type guestTimes struct {
	answered float64 // from the pod's creation to the guest's first answer
	booted   float64 // from the guest's power-on to that
	kernel   float64 // how long the guest's kernel had been up when it got its address, by its own clock
}

// guest takes the times of one pod.
func (o *options) guest(ctx context.Context, c *harness.Cluster, name string, change func(*corev1.Pod)) (t guestTimes, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	pod := o.pod(name, name, true)
	pod.Spec.Containers[0].Name = "probe"
	change(pod)
	pods := c.Client.CoreV1().Pods("default")
	began := time.Now()
	if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return t, err
	}
	defer func() {
		now := int64(0)
		_ = pods.Delete(context.Background(), name, metav1.DeleteOptions{GracePeriodSeconds: &now}) // the cluster ends soon
	}()
	var node string
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
		node, where = p.Spec.NodeName, addr
		_, failed = ask(ctx, c, node, where, "/")
		return failed
	})
	if err != nil {
		return t, err
	}
	at := time.Now()
	text, err := ask(ctx, c, node, where, "/up")
	if err != nil {
		return t, err
	}
	kernel, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err != nil {
		return t, err
	}
	log, err := pods.GetLogs(name, &corev1.PodLogOptions{}).DoRaw(ctx)
	if err != nil {
		return t, err
	}
	m := powerOn.FindSubmatch(log)
	if m == nil {
		return t, fmt.Errorf("want %q in its log, got %q", powerOn, log)
	}
	on, err := strconv.ParseInt(string(m[1]), 10, 64) // of this machine's clock, as ours is
	if err != nil {
		return t, err
	}
	booted := at.Sub(time.UnixMilli(on)).Seconds()
	return guestTimes{answered: at.Sub(began).Seconds(), booted: booted, kernel: kernel}, nil
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
