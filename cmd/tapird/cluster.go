package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"github.com/tapir-cni/tapir/agent"
	"github.com/tapir-cni/tapir/agent/cluster"
	"github.com/tapir-cni/tapir/agent/install"
	"github.com/tapir-cni/tapir/agent/tuner"
	"github.com/tapir-cni/tapir/agent/watch"
	"github.com/tapir-cni/tapir/plugin"
)

// clusterConfig is the configuration key "cluster".
type clusterConfig = cluster.Options

// joined is what the cluster has to do with the agent. Its zero value is a node without a cluster.
type joined struct {
	parts  []agent.Part
	ranges install.Ranges     // nil: the template has its own
	use    func(*agent.Agent) // takes what says whether tapir is installed, and the node's attachments; nil: nobody asks
}

// join makes the cluster's part, where the configuration has one.
func join(o clusterConfig, bpffs string, tuned tuner.Options, log *slog.Logger) (joined, error) {
	if !o.Enabled {
		return joined{}, nil
	}
	c, err := cluster.New(cluster.Config{Options: o, Logger: log})
	if err != nil {
		return joined{}, err
	}
	part := agent.Part{Name: "cluster", Run: c.Run, Plan: c.Plan, Ready: c.Ready, Notes: c.Unreachable}
	return joined{parts: []agent.Part{part}, ranges: c, use: func(a *agent.Agent) {
		if i := a.Installer(); i.Enabled() {
			c.SetInstall(i)
		}
		c.SetAttachments(a.Watcher(), func(ctx context.Context, id watch.ID, selected bool) error {
			return plugin.Shortcuts{StateDir: id.Dir, BPFFS: bpffs}.FlagPolicy(ctx, id.Key, selected)
		}, func(a *watch.Attachment) string { return tuned.Refused(a.Record.Profile) })
	}}, nil
}

// leave removes what the cluster's part made on the node, and says it on out.
func leave(o clusterConfig, out io.Writer) error {
	if !o.Enabled {
		return nil
	}
	if err := cluster.Remove(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "removed the routes to other nodes and the nftables table inet %s\n", cluster.Table)
	return err
}
