package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Pauses. Events that follow each other closely are looked at together; what failed, or is undone by somebody again and again, waits; without any event
// all is looked at, and STATUS asked, now and then.
const (
	settle     = 100 * time.Millisecond
	recheck    = 20 * time.Second
	blindCheck = 2 * time.Second // without inotify
	firstPause = time.Second
	lastPause  = 30 * time.Second
)

// A fight is that one file was written so often within that time.
const (
	fightAfter = 5
	fightWhile = time.Minute
)

// pace is when to look next.
type pace struct {
	every     time.Duration // between two looks by themselves
	pause     time.Duration
	next      time.Time // the next look by itself
	notBefore time.Time // no event brings it forward beyond this
	wrote     []writing // of the last fightWhile
}

type writing struct {
	path string
	at   time.Time
}

// event brings the next look forward.
func (p *pace) event(now time.Time) {
	at := now.Add(settle)
	if at.Before(p.notBefore) {
		at = p.notBefore
	}
	if at.Before(p.next) {
		p.next = at
	}
}

// passed takes what came of a look, and gives an error where somebody undoes what is written.
func (p *pace) passed(now time.Time, wrote []string, err error) error {
	p.wrote = slices.DeleteFunc(p.wrote, func(w writing) bool { return now.Sub(w.at) > fightWhile })
	times := map[string]int{}
	for _, path := range wrote {
		p.wrote = append(p.wrote, writing{path, now})
	}
	for _, w := range p.wrote {
		times[w.path]++
	}
	p.next, p.notBefore = now.Add(p.every), now
	for _, path := range wrote {
		if times[path] > fightAfter {
			err = fmt.Errorf("somebody undoes what is written to %s: %d times within %s; it is looked at again after %s", path, times[path], fightWhile, p.longer())
			p.next, p.notBefore = now.Add(p.pause), now.Add(p.pause)
			return err
		}
	}
	switch {
	case err != nil && !errors.Is(err, ErrNoRanges):
		p.next = now.Add(p.longer())
	case len(p.wrote) == 0 || len(wrote) == 0:
		p.pause = 0
	}
	return err
}

// longer is the next pause.
func (p *pace) longer() time.Duration {
	p.pause = max(firstPause, min(2*p.pause, lastPause))
	return p.pause
}

// Run installs, and puts right what others change, until ctx ends.
func (i *Installer) Run(ctx context.Context) error {
	p := pace{every: recheck}
	w, err := fsnotify.NewWatcher()
	if err != nil { // a user's inotify instances are few (fs.inotify.max_user_instances)
		i.log.Warn("the CNI folders cannot be watched; they are looked at again and again", "error", err, "every", blindCheck)
		w, p.every = &fsnotify.Watcher{}, blindCheck
	} else {
		defer w.Close() //nolint:errcheck // it only closes descriptors
	}
	for _, dir := range i.folders() {
		if err := sweep(dir); err != nil {
			i.log.Warn("what a killed installer left stays", "folder", dir, "error", err)
		}
	}
	var changed <-chan struct{}
	if i.c.Ranges != nil {
		changed = i.c.Ranges.Changed()
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e := <-w.Events:
			if strings.HasPrefix(filepath.Base(e.Name), tempPrefix) {
				continue
			}
			p.event(time.Now())
		case err := <-w.Errors:
			i.log.Warn("events of the CNI folders were lost; looking at all", "error", err)
			p.event(time.Now())
		case <-changed:
			p.event(time.Now().Add(-settle))
		case o := <-i.reloads:
			if err := i.adopt(o); err != nil {
				i.log.Error("a configuration of the options before stays", "error", err)
			}
			p = pace{every: p.every, next: time.Now()}
		case <-timer.C:
			err := i.once(ctx, w, &p)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			i.tell(err)
		}
		timer.Reset(time.Until(p.next))
	}
}

// once looks at all and puts it right.
func (i *Installer) once(ctx context.Context, w *fsnotify.Watcher, p *pace) error {
	if err := i.watch(w); err != nil {
		return p.passed(time.Now(), nil, err)
	}
	wrote, err := i.pass(ctx)
	i.mu.Lock()
	i.state.Writes += uint64(len(wrote))
	i.mu.Unlock()
	return p.passed(time.Now(), wrote, err)
}

// folders are those that something is installed in, or that say what.
func (i *Installer) folders() []string {
	all := []string{i.c.CNIBinDir}
	if i.c.BinDir != "" {
		all = append(all, i.c.BinDir)
	}
	if i.c.Mode != ModeBinaries {
		all = append(all, i.c.CNIConfDir)
		if dir := i.confDir(); dir != i.c.CNIConfDir {
			all = append(all, dir)
		}
	}
	return all
}

// watch hears of all folders, also of those that were removed and made anew.
func (i *Installer) watch(w *fsnotify.Watcher) error {
	dirs := i.folders()
	for _, dir := range dirs {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if i.c.Mode != ModeBinaries {
		dirs = append(dirs, filepath.Dir(i.c.Template))
	}
	if w.Events == nil { // nobody watches
		return nil
	}
	for _, dir := range dirs {
		if err := w.Add(dir); err != nil {
			return fmt.Errorf("watch %s: %w", dir, err)
		}
	}
	return nil
}
