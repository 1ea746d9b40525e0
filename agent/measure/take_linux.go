package measure

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/tapir-cni/tapir/internal/counts"
	"github.com/tapir-cni/tapir/internal/sysfs"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/xdp"
	"golang.org/x/sys/unix"
)

// absent tells whether an error says that a device or file is not there.
func absent(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) || errors.Is(err, os.ErrClosed)
}

// take takes a sample.
func (s *Sampler) take() *Sample {
	out := &Sample{Time: time.Now(), QueuesErr: s.iterErr}
	for _, a := range s.c.Watch.Snapshot() {
		out.Attachments = append(out.Attachments, &Attachment{Attachment: a})
	}
	problem := func(what string, err error) {
		if err != nil {
			out.Problems = append(out.Problems, what+": "+strings.ReplaceAll(err.Error(), "\n", "; "))
		}
	}
	linksErr, queuesErr := s.readDevices(out)
	problem("links", linksErr)
	problem("queues", queuesErr)
	problem("settings", s.readSettings(out))
	problem("frames", s.readFrames(out))
	problem("shortcut", s.readShortcut(out))
	problem("addresses", s.readIPAM(out))
	problem("calls", s.readCalls(out))
	slices.Sort(out.Problems)
	out.Took = time.Since(out.Time)
	return out
}

// few is the first of many errors: a thousand attachments can meet the same.
func few(errs []error) error {
	if len(errs) < 2 {
		return errors.Join(errs...)
	}
	return fmt.Errorf("%w, and %d more", errs[0], len(errs)-1)
}

func (s *Sampler) readSettings(out *Sample) error {
	s.mu.Lock()
	devices := make([]*sysfs.Device, len(out.Attachments))
	for i, a := range out.Attachments {
		devices[i] = s.devices[a.ID]
	}
	s.mu.Unlock()
	var errs []error
	for i, a := range out.Attachments {
		var err error
		if a.NAPI, err = readNAPI(devices[i]); err != nil {
			errs = append(errs, err)
		}
	}
	return few(errs)
}

// readFrames reads the counters of the redirect programs.
func (s *Sampler) readFrames(out *Sample) error {
	var errs []error
	open := map[string]*xdp.Programs{} // nil: they could not be opened
	for _, a := range out.Attachments {
		digest := a.Record.Programs
		if digest == "" {
			continue
		}
		p, tried := open[digest]
		if !tried {
			var err error
			if p, err = s.version(digest); err != nil {
				errs = append(errs, err)
			}
			open[digest] = p
		}
		if p == nil {
			continue
		}
		var err error
		if a.Frames, err = p.Counters(countersOf(a.Record)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return few(errs)
}

// readShortcut reads the counters of the shortcut's programs. Their maps are opened for each sample: a clean-up may have replaced the pins.
func (s *Sampler) readShortcut(out *Sample) error {
	open := map[string]*xdp.Shortcut{} // by layout; nil: it could not be opened
	var errs []error
	for _, a := range out.Attachments {
		layout := a.Record.XDP.Layout
		if layout == "" {
			continue
		}
		maps, tried := open[layout]
		if !tried {
			var err error
			if maps, err = xdp.OpenLayout(s.c.BPFFS, layout); err != nil {
				errs = append(errs, err)
			}
			open[layout] = maps
		}
		if maps == nil {
			continue
		}
		var err error
		if a.Shortcut, err = maps.ShortcutCounters(countersOf(a.Record)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	for _, maps := range open {
		if maps != nil {
			errs = append(errs, maps.Close())
		}
	}
	return few(slices.DeleteFunc(errs, func(err error) bool { return err == nil }))
}

// countersOf is the key of an attachment's counters (plugin's reserve: the TAP's, or of a plain pod the host end's).
func countersOf(a state.Attachment) uint32 {
	return uint32(cmp.Or(a.TAP.Index, a.Host.Index))
}

// version is the pinned programs of a version. Pins that were replaced are opened anew: a clean-up and a new ADD make maps of the
// same name.
func (s *Sampler) version(digest string) (*xdp.Programs, error) {
	if p := s.programs[digest]; p != nil {
		if p.Pinned() {
			return p, nil
		}
		delete(s.programs, digest)
		if err := p.Close(); err != nil {
			return nil, err
		}
	}
	p, err := xdp.OpenVersion(s.c.BPFFS, digest)
	if err != nil {
		return nil, err
	}
	s.programs[digest] = p
	return p, nil
}

func (s *Sampler) readCalls(out *Sample) error {
	var errs []error
	for _, dir := range s.c.StateDirs {
		series, err := counts.Read(dir)
		if err != nil {
			errs = append(errs, err)
		}
		for _, one := range series {
			out.Calls = append(out.Calls, Calls{Dir: dir, Series: one})
		}
	}
	return errors.Join(errs...)
}
