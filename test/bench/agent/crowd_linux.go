package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/tapir-cni/tapir/agent/metrics"
	"github.com/tapir-cni/tapir/tap"
	"github.com/tapir-cni/tapir/test/bench/goal"
	"github.com/tapir-cni/tapir/test/bench/node"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// crowdOptions are those of the part crowd.
var crowdOptions struct {
	taps, attached, scrapes int
	idle                    time.Duration
	nodeExporter            string
}

func crowdFlags() {
	c := &crowdOptions
	flag.IntVar(&c.taps, "taps", 1000, "TAPs of the part crowd, each in a netns of its own")
	flag.IntVar(&c.attached, "attached", 300, "of those, have a stand-in attached")
	flag.IntVar(&c.scrapes, "scrapes", 15, "scrapes of tapird and node_exporter each, in turn")
	flag.DurationVar(&c.idle, "idle", 30*time.Second, "how long tapird is watched while nobody asks it anything")
	flag.StringVar(&c.nodeExporter, "node-exporter", "bin/nodeexporter/node_exporter", "`command` to compare the scrape with")
}

// The goals of the part crowd: see docs/benchmarks.md.
const (
	maxRSS     = 60.0  // MB
	maxIdleCPU = 1.0   // % of one
	maxScrape  = 150.0 // ms
	maxRatio   = 0.5   // of node_exporter's time
)

// runCrowd measures what a thousand TAPs, each in its netns, cost tapird: its memory, its idling, a scrape; and a scrape of node_exporter's netclass and
// netdev collectors for as many TAPs in one netns. At the end all netns are taken down under a tapird that runs.
func runCrowd(ctx context.Context, n *node.Node, o options, out io.Writer) (goals []goal.Goal, err error) {
	c := crowdOptions
	progress("crowd: %d ADDs", c.taps)
	paths, err := crowd(ctx, n, o.bin, c.taps)
	if err != nil {
		return nil, err
	}
	standIns := make([]*tap.Queues, min(c.attached, c.taps))
	for i := range standIns {
		if standIns[i], err = tap.OpenQueues(tap.QueueOptions{Netns: paths[i], Name: tapName, Count: 1, NAPI: true}); err != nil {
			return nil, err
		}
	}
	d, err := startTapird(o.bin)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.stop()) }()
	other, err := startNodeExporter(n, c.nodeExporter, c.taps, len(standIns))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, other.stop()) }()

	own, theirs, last, err := scrapeInTurn(ctx, "http://"+metrics.DefaultBind, other.url, c.scrapes)
	if err != nil {
		return nil, err
	}
	rss, err := residentMB(d.cmd.Process.Pid)
	if err != nil {
		return nil, err
	}
	progress("crowd: idle for %s", c.idle)
	cpu, err := idleCPU(ctx, d.cmd.Process.Pid, c.idle)
	if err != nil {
		return nil, err
	}
	for _, q := range standIns { // an open queue keeps its netns
		if err := q.Close(); err != nil {
			return nil, err
		}
	}
	left, err := takeDown(paths)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(out, "\n%d TAPs, each in its netns, %d with a stand-in\n", c.taps, len(standIns))
	fmt.Fprintf(out, "  tapird: RSS %.1f MB after %d scrapes, idle %.2f %% of a CPU, %d netns left\n", rss, c.scrapes, cpu, left)
	fmt.Fprintf(out, "  scrape of tapird (%d series, %d KB with gzip): median %.1f ms (p25 %.1f, p75 %.1f), of the last %.1f for the sample\n", last.series, last.size/1000, own.Median(), own.Quantile(0.25), own.Quantile(0.75), last.sampleMS)
	fmt.Fprintf(out, "  scrape of node_exporter, netclass and netdev, %d TAPs in one netns: median %.1f ms (p25 %.1f, p75 %.1f)\n", c.taps, theirs.Median(), theirs.Quantile(0.25), theirs.Quantile(0.75))
	return []goal.Goal{
		goal.AtMost("agent/rss-mb", rss, maxRSS), goal.AtMost("agent/idle-cpu-percent", cpu, maxIdleCPU),
		goal.AtMost("agent/scrape-ms", own.Median(), maxScrape), goal.AtMost("agent/scrape-vs-node-exporter", own.Median()/theirs.Median(), maxRatio),
		goal.AtMost("agent/netns-left", float64(left), 0),
	}, nil
}

// crowdNetwork is the name of its network.
const crowdNetwork = "crowd"

// crowd makes attachments by tapir's ADD, two at a time.
func crowd(ctx context.Context, n *node.Node, bin string, count int) ([]string, error) {
	paths, err := n.NewNetnses(count)
	if err != nil {
		return nil, err
	}
	var workers sync.WaitGroup
	errs := make([]error, 2)
	for w := range errs {
		workers.Go(func() {
			for i := w; i < count && errs[w] == nil && ctx.Err() == nil; i += len(errs) {
				cmd := exec.Command(filepath.Join(bin, "tapir"))
				cmd.Env = append(os.Environ(), "CNI_COMMAND=ADD", fmt.Sprintf("CNI_CONTAINERID=%064x", i+1), "CNI_NETNS="+paths[i], "CNI_IFNAME=eth0", "CNI_PATH="+bin,
					fmt.Sprintf("CNI_ARGS=K8S_POD_NAMESPACE=team-%d;K8S_POD_NAME=web-7d4b9c6f5d-%05x", i%20, i))
				cmd.Stdin = bytes.NewReader(fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": %q, "type": "tapir", "mtu": %d,
					"ipam": {"type": "tapir-ipam", "ranges": [[{"subnet": "10.204.0.0/16"}]]}}`, crowdNetwork, mtu))
				if out, err := cmd.CombinedOutput(); err != nil {
					errs[w] = fmt.Errorf("ADD %d: %w: %s", i, err, out)
				}
			}
		})
	}
	workers.Wait()
	return paths, errors.Join(append(errs, ctx.Err())...)
}

// takeDownPatience is for the kernel, which takes namespaces down in batches, a part of a second each.
const takeDownPatience = 5 * time.Minute

// takeDown lets go of the netns and says how many the kernel has not taken down after a while.
func takeDown(paths []string) (left int, err error) {
	if left, err = hostEnds(); err == nil && left != len(paths) {
		err = fmt.Errorf("want %d host ends, got %d", len(paths), left)
	}
	if err != nil {
		return 0, err
	}
	for _, p := range paths {
		if err := errors.Join(unix.Unmount(p, unix.MNT_DETACH), os.Remove(p)); err != nil {
			return 0, fmt.Errorf("take down %s: %w", p, err)
		}
	}
	for until := time.Now().Add(takeDownPatience); ; time.Sleep(100 * time.Millisecond) {
		if left, err = hostEnds(); err != nil || left == 0 || time.Now().After(until) {
			return left, err
		}
	}
}

// hostEnds counts the crowd's veths in this netns: each goes when the netns of its other end does. (A dump of nsids would say it more
// directly, and ends after some 130 of them on Linux 6.18.)
func hostEnds() (count int, err error) {
	all, err := netlink.LinkList()
	if err != nil {
		return 0, fmt.Errorf("list links: %w", err)
	}
	for _, l := range all {
		if strings.HasPrefix(l.Attrs().Alias, "tapir:"+crowdNetwork+"/") {
			count++
		}
	}
	return count, nil
}
