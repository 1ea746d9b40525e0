package plugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/tapir-cni/tapir/internal/sysctl"
	"github.com/tapir-cni/tapir/state"
)

// The sysctls that make the node a router. Nothing else of the node is changed, and these only where they are off.
const (
	forward4 = "net/ipv4/ip_forward"
	forward6 = "net/ipv6/conf/all/forwarding"
)

// hostEndPrefix starts the names of host ends and of TAPs in the host's netns: interfaces of ours are left out of what is saved.
const hostEndPrefix = "tpr"

// ensureForwarding turns forwarding on for the families of the addresses. Old values are saved first, so that
// [RestoreSysctls] can put them back.
func ensureForwarding(ctx context.Context, store *state.Store, addrs []state.Address) error {
	want4, want6 := false, false
	for _, a := range addrs {
		want4 = want4 || a.Prefix.Addr().Is4()
		want6 = want6 || a.Prefix.Addr().Is6()
	}
	if want4 {
		if err := turnOn(ctx, store, forward4, forwardingOf("net/ipv4/conf")); err != nil {
			return err
		}
	}
	if want6 {
		return turnOn(ctx, store, forward6, keepRouterAdvertisements)
	}
	return nil
}

// change is a sysctl to set, or only to save where the value is empty.
type change struct{ name, value string }

// turnOn sets the sysctl to 1 unless it is on. before tells what else must be saved or set first.
//
// Looking and saving is one transaction, setting another: of two ADDs that come here at once, the second must not take what
// the first has changed for what was there before.
func turnOn(ctx context.Context, store *state.Store, name string, before func() ([]change, error)) error {
	old, err := sysctl.Get(name)
	if errors.Is(err, fs.ErrNotExist) {
		return withCode(CodeUnsupported, fmt.Errorf("turn forwarding on: %w; this kernel or node has that family off: leave it out of \"ranges\"", err))
	}
	if err != nil || old != "0" {
		return err
	}
	var changes []change
	err = store.Update(ctx, func(tx *state.Tx) (err error) {
		changes, err = saveBefore(tx, name, before)
		return err
	})
	if err != nil {
		return fmt.Errorf("save sysctls: %w", err)
	}
	return store.View(ctx, func(*state.Tx) error {
		for _, c := range changes {
			if c.value == "" {
				continue
			}
			if err := sysctl.Set(c.name, c.value); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return withCode(types.ErrIOFailure, fmt.Errorf("turn forwarding on: %w; set it on the node and ADD again", err))
			}
		}
		return nil
	})
}

// saveBefore saves what turning the sysctl on will change, and tells what is to be set; nothing where it is on by now.
func saveBefore(tx *state.Tx, name string, before func() ([]change, error)) ([]change, error) {
	if v, err := sysctl.Get(name); err != nil || v != "0" {
		return nil, err
	}
	changes, err := before()
	if err != nil {
		return nil, err
	}
	changes = append(changes, change{name, "1"})
	for _, c := range changes {
		if v, err := sysctl.Get(c.name); err == nil {
			if err := tx.SaveSysctl(c.name, v); err != nil {
				return nil, err
			}
		}
	}
	return changes, nil
}

// forwardingOf saves what each interface says of itself: turning forwarding on or off as a whole overwrites that.
func forwardingOf(folder string) func() ([]change, error) {
	return func() ([]change, error) {
		names, err := sysctl.Interfaces(folder)
		if err != nil {
			return nil, err
		}
		var out []change
		for _, n := range names {
			if strings.HasPrefix(n, hostEndPrefix) {
				continue
			}
			name := folder + "/" + n + "/forwarding"
			if v, err := sysctl.Get(name); err == nil && v != "0" {
				out = append(out, change{name: name})
			}
		}
		return out, nil
	}
}

// keepRouterAdvertisements makes every interface that takes router advertisements go on doing so: with forwarding on, the
// kernel drops the routes it learnt by them from interfaces whose accept_ra is 1 (net/ipv6/addrconf.c).
func keepRouterAdvertisements() ([]change, error) {
	const folder = "net/ipv6/conf"
	out, err := forwardingOf(folder)()
	if err != nil {
		return nil, err
	}
	names, err := sysctl.Interfaces(folder)
	if err != nil {
		return nil, err
	}
	for _, n := range names {
		name := folder + "/" + n + "/accept_ra"
		if v, err := sysctl.Get(name); err == nil && v == "1" && !strings.HasPrefix(n, hostEndPrefix) {
			out = append(out, change{name, "2"})
		}
	}
	return out, nil
}

// restoreSysctls puts back every sysctl that tapir changed and forgets it, or only tells which. Each is named with its old
// value, as "name = value".
func restoreSysctls(tx *state.Tx, dryRun bool) ([]string, error) {
	saved, err := tx.Sysctls()
	if err != nil {
		return nil, err
	}
	// The node-wide ones first: they overwrite those of the interfaces.
	names := slices.SortedFunc(maps.Keys(saved), func(a, b string) int {
		if w := nodeWide(b) - nodeWide(a); w != 0 {
			return w
		}
		return strings.Compare(a, b)
	})
	var done []string
	var errs []error
	for _, n := range names {
		if !dryRun {
			if err := restoreSysctl(n, saved[n]); err != nil {
				errs = append(errs, err)
				continue
			}
			errs = append(errs, tx.DeleteSysctl(n))
		}
		done = append(done, n+" = "+saved[n])
	}
	return done, errors.Join(errs...)
}

// restoreSysctl sets a sysctl, unless it has the value: where /proc/sys is read-only an ADD saved what it could not change.
func restoreSysctl(name, value string) error {
	if now, err := sysctl.Get(name); err == nil && now == value {
		return nil
	}
	err := sysctl.Set(name, value)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the interface is gone
	}
	return err
}

func nodeWide(name string) int {
	if name == forward4 || name == forward6 {
		return 1
	}
	return 0
}
