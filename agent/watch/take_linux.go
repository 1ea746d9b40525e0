package watch

import (
	"errors"
	"fmt"
	"os"
	"reflect"

	"github.com/tapir-cni/tapir/internal/links"
	"github.com/tapir-cni/tapir/state"
	"golang.org/x/sys/unix"
)

// take holds what a folder records against the picture.
func (l *loop) take(r reading) error {
	var others []Attachment // new ones and those whose devices changed, as they will be
	seen := make(map[ID]bool, len(r.records))
	for _, rec := range r.records {
		id := ID{Dir: r.dir, Key: rec.Key}
		seen[id] = true
		known, ok := l.w.Attachment(id)
		switch {
		case ok && reflect.DeepEqual(known.Record, rec) && (known.Netns != NetnsUnknown || rec.Netns == ""): // one that could not be asked is asked again
		case ok && known.followed(rec):
			next := *known
			next.Record = rec
			l.set(Event{Kind: Changed, Before: known, After: &next})
		default:
			others = append(others, Attachment{ID: id, Record: rec, NSID: links.Here})
		}
	}
	for _, a := range l.w.Snapshot() {
		if a.Dir == r.dir && !seen[a.ID] {
			l.set(Event{Kind: Removed, Before: a, After: a})
		}
	}
	err := l.look(others)
	if delete(l.unread, r.dir); len(l.unread) == 0 {
		l.w.once.Do(func() { close(l.w.ready) })
	}
	return err
}

// followed tells whether the devices of another record are those whose messages are listened to already. To read them again would be
// to know more than the messages that wait.
func (a *Attachment) followed(rec state.Attachment) bool {
	next := Attachment{Record: rec}
	if a.Netns != NetnsThere || rec.Netns != a.Record.Netns || rec.Placement != a.Record.Placement {
		return false
	}
	for _, r := range roles {
		if a.device(r) != next.device(r) || a.device(r).Index != 0 && *a.link(r) == nil {
			return false
		}
	}
	return true
}

// look reads the devices of attachments and puts them into the picture.
func (l *loop) look(list []Attachment) error {
	for i := range list {
		l.resolve(&list[i])
	}
	if err := l.resolveByHost(list); err != nil {
		return err
	}
	if err := l.readLinks(list); err != nil {
		return err
	}
	for i := range list {
		l.settle(&list[i])
	}
	return nil
}

// resolve finds the sandbox's namespace by its path.
func (l *loop) resolve(a *Attachment) {
	a.Netns, a.NSID, a.Why = NetnsUnknown, links.Here, nil
	if a.Record.Netns == "" {
		return
	}
	f, err := os.Open(a.Record.Netns)
	if err == nil {
		defer f.Close()
		err = l.identify(a, int(f.Fd()))
	}
	switch {
	case err == nil:
		a.Netns = NetnsThere
	case errors.Is(err, unix.ENOENT), errors.Is(err, errUnmounted):
		a.Netns, a.Why = NetnsLost, err
	default:
		a.Why = err
	}
}

var errUnmounted = errors.New("it is a file and no namespace: it was unmounted")

func (l *loop) identify(a *Attachment, fd int) error {
	var sfs unix.Statfs_t
	var st unix.Stat_t
	if err := errors.Join(unix.Fstatfs(fd, &sfs), unix.Fstat(fd, &st)); err != nil {
		return fmt.Errorf("read network namespace %q: %w", a.Record.Netns, err)
	}
	// A path below /proc is a namespace's own inode as well.
	if sfs.Type != unix.NSFS_MAGIC {
		return fmt.Errorf("network namespace %q: %w", a.Record.Netns, errUnmounted)
	}
	if st.Ino == l.own.Ino && st.Dev == l.own.Dev {
		return nil
	}
	id, err := l.conn.NSID(fd)
	if err != nil {
		return fmt.Errorf("network namespace %q: %w", a.Record.Netns, err)
	}
	a.NSID = id
	return nil
}

// resolveByHost finds the namespaces that no path leads to by the other end of the veth: those of rebuilt records, and those that live on
// without their mount.
func (l *loop) resolveByHost(list []Attachment) error {
	var refs []links.Ref
	var whose []int
	for i := range list {
		if a := &list[i]; a.Netns != NetnsThere && a.Record.Host.Index != 0 {
			refs, whose = append(refs, links.Ref{NSID: links.Here, Index: a.Record.Host.Index}), append(whose, i)
		}
	}
	return l.conn.Read(refs, func(i int, link *links.Link, err error) {
		a := &list[whose[i]]
		if err == nil && link.Alias == a.Alias() && link.PeerNSID != links.Here && link.PeerIndex == a.Record.Pod.Index {
			a.Netns, a.NSID, a.Why = NetnsThere, link.PeerNSID, nil
		}
	})
}

// readLinks reads all devices of the attachments.
func (l *loop) readLinks(list []Attachment) error {
	var refs []links.Ref
	var whose []int
	var role []Role
	for i := range list {
		for _, r := range roles {
			if ref, ok := list[i].Ref(r); ok {
				refs, whose, role = append(refs, ref), append(whose, i), append(role, r)
			}
		}
	}
	return l.conn.Read(refs, func(i int, link *links.Link, err error) {
		a := &list[whose[i]]
		switch {
		case err == nil:
			a.put(role[i], link)
		case !errors.Is(err, unix.ENODEV):
			a.Why = fmt.Errorf("read %s: %w", refs[i], err)
		}
	})
}

// put takes a link for a device of the attachment if it is.
func (a *Attachment) put(r Role, link *links.Link) {
	if a.Owns(r, link) {
		*a.link(r) = link
	}
}

// settle puts an attachment that was looked at into the picture, with the events that lead to it.
func (l *loop) settle(a *Attachment) {
	known, ok := l.w.Attachment(a.ID)
	if !ok {
		l.set(Event{Kind: Added, After: a})
		return
	}
	if !reflect.DeepEqual(known.Record, a.Record) {
		// Namespace and devices as they were, those that are others left out: what became of them is told next.
		next := *a
		next.Netns, next.NSID, next.Why = known.Netns, known.NSID, known.Why
		for _, r := range roles {
			if *next.link(r) = *known.link(r); known.device(r).Index != a.device(r).Index {
				*next.link(r) = nil
			}
		}
		l.set(Event{Kind: Changed, Before: known, After: &next})
		known = &next
	}
	switch {
	case a.Netns == NetnsLost && known.Netns != NetnsLost:
		known = l.gone(known, a.Why)
	case a.Netns != known.Netns || a.NSID != known.NSID:
		next := *known
		next.Netns, next.NSID, next.Why = a.Netns, a.NSID, a.Why
		l.set(Event{Kind: Changed, Before: known, After: &next})
		known = &next
	}
	for _, r := range roles {
		known = l.step(known, r, *a.link(r))
	}
}
