package uplink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/tapir-cni/tapir/internal/rtnl"
	"golang.org/x/sys/unix"
)

// Table is the shortcut's map of routes.
type Table interface {
	// Routes are the routes of the map with their hops as they stand there.
	Routes() (map[netip.Prefix]Entry, error)
	// Uplinks are the devices that frames may leave by, as they were when they became uplinks.
	Uplinks() (map[int]Device, error)
	// SetUplink says what an uplink is now.
	SetUplink(d Device) error
	// DropUplink forgets an uplink whose device is gone.
	DropUplink(index int) error
	// SetHop replaces the hop of a route. One that is gone is [fs.ErrNotExist].
	SetHop(rt Route, h Hop) error
	Close() error
}

// Device is an uplink.
type Device struct {
	Index int
	MAC   net.HardwareAddr
	MTU   int
}

func (d Device) equal(o Device) bool {
	return d.Index == o.Index && d.MTU == o.MTU && bytes.Equal(d.MAC, o.MAC)
}

// Entry is a route as the map has it.
type Entry struct {
	Route
	Hop
}

// Config is what an [Uplink] is made of.
type Config struct {
	// Open opens the map of routes; where none is pinned yet, the error is [fs.ErrNotExist].
	Open func() (Table, error)
	// Dir is the folder of the pins: what changes in it has the map opened and read anew.
	Dir    string
	Logger *slog.Logger
}

// Uplink keeps the routes.
type Uplink struct {
	c       Config
	table   Table // nil: none is pinned
	uplinks map[int]Device
	now     map[netip.Prefix]Entry
}

// New makes an Uplink.
func New(c Config) *Uplink { return &Uplink{c: c, now: map[netip.Prefix]Entry{}} }

// groups are the events that can change a hop; RTNLGRP_NEXTHOP is there since Linux 5.3.
var groups = []uint{
	unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE,
	unix.RTNLGRP_NEXTHOP,
}

// Run keeps the routes of the network namespace that it is called in until ctx ends. It begins by making all of them right, and ends
// by making all of them unusable: nobody would keep them right any more. Frames then take the default path.
func (u *Uplink) Run(ctx context.Context) error {
	monitor, err := rtnl.Watch(groups...)
	if err != nil {
		return err
	}
	conn, err := rtnl.Open()
	if err != nil {
		monitor.Close()
		return err
	}
	defer conn.Close()
	todo := newChanges()
	pins, err := watchPins(u.c.Dir, func() { todo.add(func(c *change) { c.entries = true }) })
	if err != nil {
		monitor.Close()
		return err
	}
	ended := make(chan error, 2)
	var readers sync.WaitGroup
	readers.Go(func() { ended <- receive(monitor, todo) })
	readers.Go(func() { ended <- pins.run() })
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	todo.add(func(c *change) { c.all, c.entries = true, true })
	err = u.loop(ctx, conn, todo, ended)
	monitor.Close()
	pins.close()
	readers.Wait()
	return errors.Join(err, u.retire())
}

// receive notes what rtnetlink says until the monitor is closed.
func receive(monitor *rtnl.Monitor, todo *changes) error {
	for {
		msgs, err := monitor.Receive()
		switch {
		case errors.Is(err, rtnl.ErrLost):
			todo.add(func(c *change) { c.all = true })
			continue
		case err != nil:
			return err
		}
		todo.add(func(c *change) {
			for _, m := range msgs {
				c.note(m)
			}
		})
	}
}

// All is looked at again a second after something could not be read or written, then after twice as long each time.
const (
	firstRetry = time.Second
	lastRetry  = time.Minute
)

func (u *Uplink) loop(ctx context.Context, conn *rtnl.Conn, todo *changes, ended <-chan error) error {
	retry := firstRetry
	for {
		select {
		case <-ctx.Done():
			return nil
		case end := <-ended:
			return end
		case <-todo.C:
		}
		if err := u.apply(conn, todo.take()); err != nil {
			u.c.Logger.Warn("could not bring all routes of the shortcut up to date; it is tried again", "error", err, "after", retry)
			time.AfterFunc(retry, func() { todo.add(func(c *change) { c.all, c.entries = true, true }) }) // after the end it does nothing
			retry = min(2*retry, lastRetry)
			continue
		}
		retry = firstRetry
	}
}

// apply brings the routes up to date that a change may touch.
func (u *Uplink) apply(conn *rtnl.Conn, c change) error {
	fresh := map[netip.Prefix]bool{}
	if c.entries || c.all {
		if err := u.read(fresh); err != nil {
			return err
		}
	}
	errs := []error{u.keepUplinks(conn, c)}
	r := &resolver{conn: conn, uplinks: u.uplinks, routed: map[int][]routed{}}
	for prefix, e := range u.now {
		if !fresh[prefix] && !c.touches(e.Route, e.Hop) {
			continue
		}
		h, ask, err := r.hop(e.Route)
		if err != nil {
			// Who cannot tell whether a hop is right does not leave it in use.
			h = Hop{Dev: e.Hop.Dev, Why: err.Error()}
			errs = append(errs, err)
		}
		errs = append(errs, u.set(e, h))
		// One that vanished unanswered is asked for again when the node itself wants to send to it.
		if ask && (h.Usable || e.Hop.Usable || fresh[prefix] || c.all || !c.neighbours[e.Via]) {
			errs = append(errs, conn.UseNeighbour(h.Dev, e.Via))
		}
	}
	return errors.Join(errs...)
}

// read reads the map's routes, and puts those that are new or changed hands into fresh.
func (u *Uplink) read(fresh map[netip.Prefix]bool) error {
	if u.table != nil {
		_ = u.table.Close() // the pins may be others by now
		u.table = nil
	}
	table, err := u.c.Open()
	if errors.Is(err, fs.ErrNotExist) {
		u.now, u.uplinks = map[netip.Prefix]Entry{}, nil
		return nil
	}
	if err != nil {
		return err
	}
	u.table = table
	entries, err := table.Routes()
	if err != nil {
		return err
	}
	uplinks, err := table.Uplinks()
	if err != nil {
		return err
	}
	for index := range uplinks {
		if old, ok := u.uplinks[index]; ok {
			uplinks[index] = old // what the map was told last
		}
	}
	others := !maps.EqualFunc(uplinks, u.uplinks, Device.equal)
	u.uplinks = uplinks
	for prefix, e := range entries {
		old, ok := u.now[prefix]
		if fresh[prefix] = !ok || others || old.Route != e.Route || !old.Hop.Equal(e.Hop); !fresh[prefix] {
			entries[prefix] = old // which knows why
		}
	}
	u.now = entries
	return nil
}

// keepUplinks tells the map of uplinks that have another MAC or MTU by now, or are gone.
func (u *Uplink) keepUplinks(conn *rtnl.Conn, c change) error {
	var errs []error
	for index, old := range u.uplinks {
		if !c.all && !c.entries && !c.devices[index] {
			continue
		}
		link, err := conn.LinkByIndex(index)
		if rtnl.Gone(err) {
			delete(u.uplinks, index)
			errs = append(errs, u.table.DropUplink(index))
			continue
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("look up uplink %d: %w", index, err))
			continue
		}
		now := Device{index, link.Attrs().HardwareAddr, link.Attrs().MTU}
		// Also where both are the same: what the driver takes may have changed.
		if err := u.table.SetUplink(now); err != nil {
			errs = append(errs, err)
			continue
		}
		u.uplinks[index] = now
		if now.equal(old) {
			continue
		}
		u.c.Logger.Info("an uplink has changed", "name", link.Attrs().Name, "mac", now.MAC, "mtu", now.MTU)
	}
	return errors.Join(errs...)
}

// set writes a hop into the map where frames would take another way by it.
func (u *Uplink) set(e Entry, h Hop) error {
	said := e.Hop.Equal(h) && e.Hop.Why == h.Why
	if !e.Hop.Equal(h) {
		err := u.table.SetHop(e.Route, h)
		if errors.Is(err, fs.ErrNotExist) {
			delete(u.now, e.Prefix)
			return nil
		}
		if err != nil {
			return fmt.Errorf("route %s: %w", e.Prefix, err)
		}
	}
	u.now[e.Prefix] = Entry{e.Route, h}
	if said {
		return nil
	}
	if h.Usable {
		u.c.Logger.Info("a route of the shortcut is usable", "prefix", e.Prefix, "via", e.Via, "ifindex", h.Dev, "mac", h.MAC, "mtu", h.MTU)
	} else {
		u.c.Logger.Info("a route of the shortcut is not usable", "prefix", e.Prefix, "via", e.Via, "why", h.Why)
	}
	return nil
}

// retire makes every route unusable and lets go of the map.
func (u *Uplink) retire() error {
	if u.table == nil {
		return nil
	}
	var errs []error
	for _, e := range u.now {
		errs = append(errs, u.set(e, Hop{Dev: e.Hop.Dev, Why: "tapird ended"}))
	}
	errs = append(errs, u.table.Close())
	u.table = nil
	return errors.Join(errs...)
}
