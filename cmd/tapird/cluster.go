package main

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/tapir-cni/tapir/agent"
	"github.com/tapir-cni/tapir/agent/cluster"
	"github.com/tapir-cni/tapir/agent/install"
)

// clusterConfig is the configuration key "cluster".
type clusterConfig = cluster.Options

// joined is what the cluster has to do with the agent. Its zero value is a node without a cluster.
type joined struct {
	parts   []agent.Part
	ranges  install.Ranges           // nil: the template has its own
	install func(*install.Installer) // takes what says whether tapir is installed; nil: nobody asks
}

// join makes the cluster's part, where the configuration has one.
func join(o clusterConfig, log *slog.Logger) (joined, error) {
	if !o.Enabled {
		return joined{}, nil
	}
	c, err := cluster.New(cluster.Config{Options: o, Logger: log})
	if err != nil {
		return joined{}, err
	}
	part := agent.Part{Name: "cluster", Run: c.Run, Plan: c.Plan, Ready: c.Ready, Notes: c.Unreachable}
	return joined{parts: []agent.Part{part}, ranges: c, install: func(i *install.Installer) {
		if i.Enabled() {
			c.SetInstall(i)
		}
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
