package watch

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/tapir-cni/tapir/state"
	"golang.org/x/sys/unix"
)

// reading is what a state folder held.
type reading struct {
	dir     string
	records []state.Attachment
}

// What is listened to. A transaction opens the state's file and closes it when it has ended, killed processes included, so each change
// ends with IN_CLOSE_WRITE; readers, this process among them, give IN_CLOSE_NOWRITE and are not heard.
const (
	folderMask = unix.IN_CLOSE_WRITE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR
	parentMask = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR
)

// After a failed reading it is tried again even where nothing happens.
const (
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// reader reads one state folder whenever it changes.
type reader struct {
	dir     string
	c       Config
	store   *state.Store
	out     chan<- reading
	inotify *os.File
	fd      int
	folder  int // watch descriptors, -1 where there is none
	parent  int
	w       *Watcher
	log     *slog.Logger
}

func newReader(w *Watcher, dir string, log *slog.Logger, out chan<- reading) (*reader, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("open inotify: %w", err)
	}
	return &reader{
		dir: dir, c: w.c, w: w, log: log, out: out, inotify: os.NewFile(uintptr(fd), "inotify"), fd: fd, folder: -1, parent: -1,
		store: state.New(state.Config{Dir: dir, LockWait: w.c.LockWait, Logger: log}),
	}, nil
}

func (r *reader) close() error { return r.inotify.Close() }

// run reads and waits by turns.
func (r *reader) run(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() { _ = r.inotify.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	retry := firstRetry
	for ctx.Err() == nil {
		wait := time.Duration(0)
		if err := errors.Join(r.arm(), r.read(ctx)); err == nil {
			retry = firstRetry
		} else if ctx.Err() == nil {
			r.w.counts.failedReadings.Add(1)
			r.log.Warn("could not read the state; what is known of it stays", "stateDir", r.dir, "again", retry, "error", err)
			wait, retry = retry, min(2*retry, lastRetry)
		}
		// Writers that follow each other closely are read together.
		if !sleep(ctx, r.c.ReadEvery) {
			return
		}
		r.await(ctx, wait)
	}
}

// read reads the folder and hands its records over.
func (r *reader) read(ctx context.Context) error {
	got := reading{dir: r.dir}
	err := r.store.View(ctx, func(tx *state.Tx) error {
		got.records = nil
		return tx.ForEach("", func(a state.Attachment) error {
			got.records = append(got.records, a)
			return nil
		})
	})
	if err != nil {
		return err
	}
	r.w.counts.readings.Add(1)
	select {
	case r.out <- got:
	case <-ctx.Done():
	}
	return nil
}

// arm listens to the folder, or to the nearest one above it that is there.
func (r *reader) arm() error {
	for {
		wd, err := unix.InotifyAddWatch(r.fd, r.dir, folderMask)
		if err == nil {
			r.folder = wd
			r.disarmParent()
			return nil
		}
		if !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("watch the state folder %q: %w", r.dir, err)
		}
		above := filepath.Dir(r.dir)
		for !isDir(above) && above != filepath.Dir(above) {
			above = filepath.Dir(above)
		}
		wd, err = unix.InotifyAddWatch(r.fd, above, parentMask)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return fmt.Errorf("watch the folder %q: %w", above, err)
		}
		if wd != r.parent {
			r.disarmParent()
		}
		r.parent = wd
		if below, _ := filepath.Rel(above, r.dir); !isDir(filepath.Join(above, strings.Split(below, "/")[0])) {
			return nil
		}
	}
}

func (r *reader) disarmParent() {
	if r.parent != -1 && r.parent != r.folder {
		_, _ = unix.InotifyRmWatch(r.fd, uint32(r.parent)) // it may have gone with its folder
	}
	r.parent = -1
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// await returns when the state may have changed, or after wait where that is not 0.
func (r *reader) await(ctx context.Context, wait time.Duration) {
	deadline := time.Time{}
	if wait != 0 {
		deadline = time.Now().Add(wait)
	}
	if err := r.inotify.SetReadDeadline(deadline); err != nil || ctx.Err() != nil {
		return
	}
	buf := make([]byte, 16<<10)
	for {
		n, err := r.inotify.Read(buf)
		if err != nil {
			if !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, fs.ErrClosed) {
				r.log.Warn("could not wait for the state to change", "stateDir", r.dir, "error", err)
				sleep(ctx, firstRetry)
			}
			return
		}
		if r.concerns(buf[:n]) {
			return
		}
	}
}

// concerns tells whether one of the events (inotify(7)) says that the state may be another.
func (r *reader) concerns(b []byte) (yes bool) {
	for len(b) >= unix.SizeofInotifyEvent {
		wd := int(int32(binary.NativeEndian.Uint32(b)))
		mask, size := binary.NativeEndian.Uint32(b[4:]), int(binary.NativeEndian.Uint32(b[12:]))
		end := min(unix.SizeofInotifyEvent+size, len(b))
		name := unix.ByteSliceToString(b[unix.SizeofInotifyEvent:end])
		b = b[end:]
		switch {
		case mask&(unix.IN_Q_OVERFLOW|unix.IN_DELETE_SELF|unix.IN_MOVE_SELF) != 0, wd == r.parent:
			yes = true
		case mask&unix.IN_IGNORED != 0:
			if wd == r.folder {
				r.folder, yes = -1, true
			}
		case wd == r.folder && name == "state.db":
			yes = true
		}
	}
	return yes
}

// sleep waits, and tells whether ctx still lives.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
