package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/tapir-cni/tapir/internal/rtnl"
	"github.com/tapir-cni/tapir/internal/supervise"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/tap"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// execPolicy decides which TAPs exec answers for, and how they are opened.
type execPolicy struct {
	ctx    context.Context
	o      *options
	only   *state.Key // nil: every attachment
	queues int        // that may be open at once; 0: no limit
	log    *slog.Logger
}

// decide looks the device up in the netns of the VMM's file. It is tapir's when its ifalias names an attachment, and that
// attachment's record has a TAP of its ifindex.
func (p *execPolicy) decide(ask supervise.Ask) (supervise.Answer, error) {
	conn, err := openRtnl(ask.Netns)
	if err != nil {
		return supervise.Answer{}, err
	}
	defer conn.Close()
	link, err := conn.LinkByName(ask.Name)
	if _, none := errors.AsType[netlink.LinkNotFoundError](err); none {
		return supervise.Answer{}, nil // the VMM makes one of its own
	}
	if err != nil {
		return supervise.Answer{}, fmt.Errorf("look up %q: %w", ask.Name, err)
	}
	key, tagged := state.ParseAlias(link.Attrs().Alias)
	if !tagged {
		return supervise.Answer{}, nil
	}
	if p.only != nil && *p.only != key {
		p.log.Info("left a TAP alone", "tap", ask.Name, "attachment", key.String(), "wanted", p.only.String())
		return supervise.Answer{}, nil
	}
	index := link.Attrs().Index
	rec, err := p.record(key, index)
	if err != nil {
		return supervise.Answer{}, err
	}
	if rec == nil {
		p.log.Warn("left a TAP alone", "tap", ask.Name, "attachment", key.String(), "ifindex", index,
			"reason", "no record of it in "+strings.Join(p.o.stateDirs, ", ")+"; name its folder with --state-dir")
		return supervise.Answer{}, nil
	}
	info, err := tap.Read(conn, index)
	if err != nil {
		return supervise.Answer{}, err
	}
	return p.answer(ask, *rec, info), nil
}

func (p *execPolicy) answer(ask supervise.Ask, rec state.Attachment, info tap.Info) supervise.Answer {
	a := supervise.Answer{Supervise: true, Attachment: rec.Key.String()}
	a.Flags = ask.Flags&^unix.IFF_MULTI_QUEUE | info.Flags&unix.IFF_MULTI_QUEUE
	if !rec.NoNAPI {
		a.Flags |= unix.IFF_NAPI
	}
	if have := info.Queues + info.Disabled; p.queues > 0 && have >= p.queues {
		a.Refuse = unix.E2BIG
		a.Reason = fmt.Sprintf("%d queues are open; --queues allows %d", have, p.queues)
	}
	return a
}

// record is the attachment's record if its TAP has that ifindex, else nil.
func (p *execPolicy) record(key state.Key, index int) (rec *state.Attachment, err error) {
	for _, dir := range p.o.stateDirs {
		err := state.New(state.Config{Dir: dir, Logger: p.log}).View(p.ctx, func(tx *state.Tx) error {
			rec = nil
			a, ok, err := tx.Attachment(key)
			if ok && a.TAP.Index == index {
				rec = &a
			}
			return err
		})
		if err != nil || rec != nil {
			return rec, err
		}
	}
	return nil, nil
}

// openRtnl opens a connection in the netns that fd refers to. Where that is this process's own it takes no CAP_SYS_ADMIN.
func openRtnl(fd int) (conn *rtnl.Conn, err error) {
	own, err := ownNetns(fd)
	if err != nil {
		return nil, fmt.Errorf("netns of the VMM's file: %w", err)
	}
	if own {
		return rtnl.Open()
	}
	netns, err := ns.GetNS(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return nil, fmt.Errorf("netns of the VMM's file: %w", err)
	}
	defer netns.Close()
	err = netns.Do(func(ns.NetNS) error {
		conn, err = rtnl.Open()
		return err
	})
	return conn, err
}

func ownNetns(fd int) (bool, error) {
	var own, other unix.Stat_t
	if err := errors.Join(unix.Stat("/proc/thread-self/ns/net", &own), unix.Fstat(fd, &other)); err != nil {
		return false, err
	}
	return own.Ino == other.Ino && own.Dev == other.Dev, nil
}
