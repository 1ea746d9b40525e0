package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/xdp"
)

// listed is one attachment with its counters, as "list -o json" prints it.
type listed struct {
	state.Attachment
	StateDir string                 `json:"stateDir"`
	Counters map[string]xdp.Counter `json:"counters,omitempty"` // by reason, those above 0
	Dropped  uint64                 `json:"dropped"`            // frames
}

func newList(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "list [CONTAINER-ID]",
		Short: "List the attachments of this node",
		Long: `List every attachment: its network, sandbox, devices, addresses and what its guest sent and received.
CONTAINER-ID, or the start of one, narrows the list. -o json has everything that is known, counters by reason included.`,
		Args: usageArgs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			all, err := attachments(cmd.Context(), o)
			if err != nil {
				return err
			}
			if len(args) == 1 {
				all = match(all, args[0])
			}
			list := make([]listed, 0, len(all))
			for _, a := range all {
				list = append(list, withCounters(o, a))
			}
			if o.output == "json" {
				return printJSON(cmd.OutOrStdout(), list)
			}
			return printList(cmd, list)
		},
	}
}

// recorded is an attachment and the state directory that has it.
type recorded struct {
	state.Attachment
	dir string
}

// attachments are those of every state directory.
func attachments(ctx context.Context, o *options) ([]recorded, error) {
	var all []recorded
	for _, dir := range o.stateDirs {
		var here []recorded
		err := state.New(state.Config{Dir: dir}).View(ctx, func(tx *state.Tx) error {
			here = nil
			return tx.ForEach("", func(a state.Attachment) error {
				here = append(here, recorded{a, dir})
				return nil
			})
		})
		if err != nil {
			return nil, err
		}
		all = append(all, here...)
	}
	return all, nil
}

// match are the attachments whose container id starts so.
func match(all []recorded, id string) []recorded {
	var out []recorded
	for _, a := range all {
		if strings.HasPrefix(a.ContainerID, id) {
			out = append(out, a)
		}
	}
	return out
}

// find is the one attachment that "CONTAINER-ID[/IFNAME]" names; the id may be cut.
func find(ctx context.Context, o *options, name string) (recorded, error) {
	all, err := attachments(ctx, o)
	if err != nil {
		return recorded{}, err
	}
	id, ifName, _ := strings.Cut(name, "/")
	var found []recorded
	for _, a := range match(all, id) {
		if ifName == "" || a.IfName == ifName {
			found = append(found, a)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return recorded{}, fmt.Errorf("no attachment %q in %s; see \"tapirctl list\"", name, strings.Join(o.stateDirs, ", "))
	}
	names := make([]string, len(found))
	for i, a := range found {
		names[i] = a.Key.String()
	}
	return recorded{}, fmt.Errorf("attachment %q: want one, got %d: %s; name it as CONTAINER-ID/IFNAME", name, len(found), strings.Join(names, ", "))
}

// withCounters reads the counters of an attachment; one without programs has none.
func withCounters(o *options, a recorded) listed {
	l := listed{Attachment: a.Attachment, StateDir: a.dir}
	progs, err := xdp.OpenVersion(o.bpffs, a.Programs)
	if err != nil {
		return l
	}
	defer progs.Close()
	counters, err := progs.Counters(counterKey(a.Attachment))
	if err != nil {
		return l
	}
	l.Counters = map[string]xdp.Counter{}
	for reason, c := range counters {
		if c.Frames > 0 {
			l.Counters[reason.String()] = c
		}
		if reason.Dropped() {
			l.Dropped += c.Frames
		}
	}
	l.addRefused(o, a.Attachment)
	return l
}

// counterKey is the ifindex under which an attachment is counted.
func counterKey(a state.Attachment) uint32 {
	if a.TAP.Index != 0 {
		return uint32(a.TAP.Index)
	}
	return uint32(a.Host.Index) // of a plain pod
}

func printList(cmd *cobra.Command, list []listed) error {
	w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NETWORK\tCONTAINER\tIFNAME\tSTATUS\tTAP\tQUEUES\tMTU\tGUEST MAC\tADDRESSES\tPLACEMENT\tXDP\tHOST END\tDROPPED\tAGE")
	for _, a := range list {
		var ips []string
		for _, ip := range a.Addresses {
			ips = append(ips, ip.Prefix.String())
		}
		tapName, placement, queues := a.TAP.Name, a.Placement, fmt.Sprint(a.Queues)
		switch {
		case tapName == "":
			tapName, placement, queues = "-", "-", "-"
		case a.Queues == 0: // rebuilt from a multi-queue TAP
			queues = unknown
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t%d\t%s\n", a.Network, short(a.ContainerID), a.IfName, a.Status,
			tapName, queues, a.MTU, a.GuestMAC, strings.Join(ips, ","), placement, dash(a.XDP.Mode), dash(a.Host.Name), a.Dropped, age(a.Created))
	}
	return errors.Join(w.Flush())
}

// short is a container id as people tell it from another.
func short(id string) string { return id[:min(len(id), 13)] }

func age(since time.Time) string {
	if since.IsZero() {
		return "-"
	}
	return time.Since(since).Round(time.Second).String()
}
