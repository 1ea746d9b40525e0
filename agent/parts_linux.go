package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"

	"github.com/tapir-cni/tapir/agent/broker"
	"github.com/tapir-cni/tapir/agent/uplink"
	"github.com/tapir-cni/tapir/agent/watch"
	"github.com/tapir-cni/tapir/xdp"
)

// The names of the parts that others stand on.
const (
	partWatch   = "watch"
	partMeasure = "measure"
)

// list is the parts in the order in which they open and start: who is told comes after who tells. Each new part has its place here.
func (a *Agent) list() []part {
	all := []part{
		a.brokerPart(), // first: it is what keeps a second tapird from beginning
		{name: "journal", open: a.openJournal},
		{name: partWatch, run: a.watch.Run, plan: a.planWatch},
		{name: partMeasure, run: a.measure.Run},
		{name: "tuner", run: a.tuner.Run, reload: a.reloadTuner, plan: a.tuner.Plan},
		{name: "reconcile", run: a.mend.Run, reload: a.reloadReconcile, plan: a.mend.Plan},
		a.uplinkPart(),
		a.metricsPart(),
		a.pagePart(),
	}
	for _, p := range a.c.Parts {
		all = append(all, p.part())
	}
	return append(all, a.installPart()) // last: its configuration has the runtime call tapir
}

// installPart keeps tapir installed on the node, where that is wanted.
func (a *Agent) installPart() part {
	if !a.c.Install.Enabled() {
		return part{name: "install"}
	}
	return part{
		name: "install", run: a.install.Run, plan: a.install.Plan, ready: a.install.Ready, notes: a.install.Notes,
		reload: func(c Config) error { return a.install.Reload(c.Install.Options) },
	}
}

func (a *Agent) openJournal() error {
	aside, err := a.journal.Open()
	if aside != "" {
		a.log.Warn("the journal was unreadable; what an earlier tapird changed stays as it is", "kept", aside)
	}
	return err
}

func (a *Agent) reloadTuner(c Config) error {
	a.tuner.Reload(c.Tuner)
	return nil
}

func (a *Agent) reloadReconcile(c Config) error {
	a.mend.Reload(c.Reconcile)
	return nil
}

func (a *Agent) planWatch(_ context.Context, out io.Writer) error {
	ready, attached := 0, 0
	all := a.watch.Snapshot()
	for _, one := range all {
		if one.Ready() {
			ready++
		}
		if one.Attached() > 0 {
			attached++
		}
	}
	_, err := fmt.Fprintf(out, "watch: %d attachments in %v, %d of them ready, %d with a VMM\n", len(all), a.c.StateDirs, ready, attached)
	return err
}

// uplinkPart keeps the shortcut's next hops.
func (a *Agent) uplinkPart() part {
	if a.c.NoUplink {
		return part{name: "uplink"}
	}
	dir := cmp.Or(a.c.BPFFS, xdp.DefaultDir)
	open := func() (uplink.Table, error) { return uplink.OpenPinned(dir) }
	return part{
		name: "uplink",
		run: func(ctx context.Context) error {
			return uplink.New(uplink.Config{Open: open, Dir: dir, Logger: a.log}).Run(ctx)
		},
		plan: func(_ context.Context, out io.Writer) error { return planUplink(out, open) },
	}
}

func planUplink(out io.Writer, open func() (uplink.Table, error)) error {
	routes := map[netip.Prefix]uplink.Entry{}
	table, err := open()
	if err == nil {
		routes, err = table.Routes()
		err = errors.Join(err, table.Close())
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_, err = fmt.Fprintf(out, "uplink: keep %d routes of the shortcut\n", len(routes))
	return err
}

// brokerPart has its socket before anything else is opened: a second tapird is to do nothing at all.
func (a *Agent) brokerPart() part {
	var socket *broker.Socket
	gone := make(chan struct{}, 1)
	a.watch.Subscribe(func(e watch.Event) {
		if e.Kind == watch.Removed {
			select {
			case gone <- struct{}{}:
			default: // the sweep that is to come sees this one, too
			}
		}
	})
	listen := func() (err error) {
		socket, err = broker.Listen(a.c.Socket)
		return err
	}
	return part{
		name: "broker",
		open: listen,
		run: func(ctx context.Context) error {
			if socket == nil { // it failed, and let go of the socket
				if err := listen(); err != nil {
					return err
				}
			}
			s := broker.New(broker.Config{StateDirs: a.c.StateDirs, Timeout: a.c.Timeout, MaxPeers: a.c.MaxPeers, Gone: gone, Logger: a.log})
			err := s.Serve(ctx, socket)
			socket = nil
			return err
		},
		plan: func(_ context.Context, out io.Writer) error {
			_, err := fmt.Fprintf(out, "broker: hand over queues at %s\n", a.c.Socket)
			return err
		},
	}
}
