package uplink

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// pins watches the folder of the pins, by inotify. bpffs tells of what is created, renamed and removed in it; who changes a map's
// entries touches its pin.
type pins struct {
	dir     string
	f       *os.File
	changed func()
}

// watchedEvents: IN_ATTRIB is a touch.
const watchedEvents = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_ATTRIB | unix.IN_DELETE_SELF | unix.IN_ONLYDIR

func watchPins(dir string, changed func()) (*pins, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", dir, err)
	}
	p := &pins{dir: filepath.Clean(dir), f: os.NewFile(uintptr(fd), "inotify"), changed: changed}
	if err := p.watch(fd); err != nil {
		return nil, errors.Join(err, p.f.Close())
	}
	return p, nil
}

// watch adds the watches that are missing: of the folder and those in it, or of the nearest one above that exists.
func (p *pins) watch(fd int) error {
	dir := p.dir
	for {
		_, err := unix.InotifyAddWatch(fd, dir, watchedEvents)
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir) {
			return fmt.Errorf("watch %s: %w", dir, err)
		}
		dir = filepath.Dir(dir)
	}
	if dir != p.dir {
		if _, err := os.Stat(p.dir); err == nil {
			return p.watch(fd) // made meanwhile
		}
		return nil
	}
	entries, err := os.ReadDir(p.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("watch %s: %w", p.dir, err)
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		_, err := unix.InotifyAddWatch(fd, filepath.Join(p.dir, e.Name()), watchedEvents)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("watch %s: %w", e.Name(), err)
		}
	}
	return nil
}

// run tells of changes until the watch is closed.
func (p *pins) run() error {
	raw, err := p.f.SyscallConn()
	if err != nil {
		return err
	}
	events := make([]byte, 4096) // which events they are does not matter
	for {
		if _, err := p.f.Read(events); err != nil {
			return fmt.Errorf("watch %s: %w", p.dir, err)
		}
		var watchErr error
		if err := raw.Control(func(fd uintptr) { watchErr = p.watch(int(fd)) }); err != nil {
			return fmt.Errorf("watch %s: %w", p.dir, err)
		}
		if watchErr != nil {
			return watchErr
		}
		p.changed()
	}
}

func (p *pins) close() { _ = p.f.Close() }

// Touch tells a running tapird that the routes of a map were changed, by its pin.
func Touch(pin string) error {
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, pin, nil, 0); err != nil {
		return &fs.PathError{Op: "touch", Path: pin, Err: err}
	}
	return nil
}
