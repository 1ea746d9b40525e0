// Package state keeps what tapir must remember between two CNI calls: attachments, the leases of their addresses,
// ifindexes given out and sysctls changed. It is one bbolt file below the state directory, on tmpfs, that lives as long
// as what it describes: a reboot ends it together with the network namespaces and devices.
//
// Every transaction opens and closes the file, under an flock of its own on <dir>/lock, so that short-lived
// processes share it. Where the file is missing, unreadable or of an earlier boot, what it held is rebuilt from the
// kernel: the devices that tapir makes carry their attachment in ifalias (see [Key.Alias]).
package state

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// DefaultDir is where the state lives if no configuration says otherwise.
const DefaultDir = "/run/tapir"

// DefaultLockWait is how long a transaction waits for another one.
const DefaultLockWait = 5 * time.Second

// Config is what a [Store] is made of. Its zero value is the state of the node's own tapir.
type Config struct {
	Dir      string        // [DefaultDir] where empty
	LockWait time.Duration // [DefaultLockWait] where 0
	Logger   *slog.Logger  // to stderr where nil: stdout belongs to the CNI result

	// Rebuild gives the attachments that the kernel knows of, when the state is missing or unreadable;
	// [ScanKernel] where nil.
	Rebuild func(context.Context) ([]Attachment, error)
}

// Store is the state below one directory. It holds no file open between transactions, and its methods may be called
// by several goroutines at once. A process should have one Store for a directory.
type Store struct {
	dir      string
	lockWait time.Duration
	log      *slog.Logger
	rebuild  func(context.Context) ([]Attachment, error)

	turn   chan struct{} // one transaction of this process at a time
	bootID func() (string, error)
	now    func() time.Duration // since boot
}

// New makes a Store. It does not touch the file system.
func New(c Config) *Store {
	s := &Store{
		dir: c.Dir, lockWait: c.LockWait, log: c.Logger, rebuild: c.Rebuild,
		turn: make(chan struct{}, 1), bootID: readBootID, now: sinceBoot,
	}
	if s.dir == "" {
		s.dir = DefaultDir
	}
	if s.lockWait == 0 {
		s.lockWait = DefaultLockWait
	}
	if s.log == nil {
		s.log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	if s.rebuild == nil {
		s.rebuild = ScanKernel
	}
	return s
}

// Dir is the state directory.
func (s *Store) Dir() string { return s.dir }

func (s *Store) lockPath() string { return filepath.Join(s.dir, "lock") }
func (s *Store) dbPath() string   { return filepath.Join(s.dir, "state.db") }

// Update runs fn in a transaction that is committed when fn returns nil and undone otherwise. Directory and file are
// made where they are missing. fn may run a second time, on rebuilt state, when the first run met an unreadable
// record: it must set what it returns afresh each time, and do nothing else that cannot be repeated.
//
// Besides fn's own errors it gives errors that are [ErrLocked], [ErrCorrupt] or [ErrSchema], the context's error, or
// the system's with the name of the file.
func (s *Store) Update(ctx context.Context, fn func(*Tx) error) error {
	if err := makeDir(s.dir); err != nil {
		return fmt.Errorf("create state directory: %w", err)
	}
	for {
		err := s.locked(ctx, unix.LOCK_EX, func(died int) error { return s.transact(ctx, true, died, fn) })
		// [Store.Remove] may take the directory away at any time before it is locked.
		if !errors.Is(err, fs.ErrNotExist) || exists(s.dir) {
			return err
		}
		if err := makeDir(s.dir); err != nil {
			return fmt.Errorf("create state directory: %w", err)
		}
	}
}

// View runs fn in a transaction that sees the state and changes nothing: writes in it give [ErrReadOnly]. Where
// there is no state, fn sees an empty one and neither directory nor file is made, unless the kernel has tapir's
// devices: then the state is rebuilt first. Errors are those of [Store.Update].
func (s *Store) View(ctx context.Context, fn func(*Tx) error) error {
	read := func(tx *Tx) error {
		only := *tx
		only.writable = false
		return fn(&only)
	}
	return s.existing(ctx, read, func() error {
		return s.locked(ctx, unix.LOCK_SH, func(int) error { return s.transact(ctx, false, 0, read) })
	})
}

// UpdateExisting is [Store.Update] for what only removes: where there is neither state nor a device of tapir's, it
// makes no file, and fn sees an empty state in which deletions succeed and writes give [ErrReadOnly].
func (s *Store) UpdateExisting(ctx context.Context, fn func(*Tx) error) error {
	return s.existing(ctx, fn, func() error { return s.Update(ctx, fn) })
}

// existing runs fn on an empty state where there is none, else do.
func (s *Store) existing(ctx context.Context, fn func(*Tx) error, do func() error) error {
	if !exists(s.dbPath()) {
		found, err := s.rebuild(ctx)
		if err != nil {
			return &corruptError{path: s.dbPath(), cause: err, final: true}
		}
		if len(found) == 0 {
			return fn(&Tx{now: s.now})
		}
		return s.Update(ctx, fn)
	}
	err := do()
	var stale *staleError
	switch {
	case errors.As(err, &stale), isCorrupt(err):
		// A reader cannot set the file aside; a writer that changes nothing can.
		return s.Update(ctx, fn)
	case errors.Is(err, fs.ErrNotExist) && !exists(s.dbPath()):
		return fn(&Tx{now: s.now}) // removed since we looked
	}
	return err
}

// Check tells whether the state can be used: by a transaction that changes nothing where there is a file, else by
// whether its directory could be made and written to. The error says why not.
func (s *Store) Check(ctx context.Context) error {
	if exists(s.dbPath()) {
		return s.View(ctx, func(*Tx) error { return nil })
	}
	dir := s.dir
	for !exists(dir) && dir != filepath.Dir(dir) {
		dir = filepath.Dir(dir)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("state directory %q: %q is not a directory", s.dir, dir)
	}
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return fmt.Errorf("state directory %q: write to %q: %w", s.dir, dir, err)
	}
	return nil
}

// Remove deletes the state with its directory where it describes nothing any more: no attachment, no lease and no
// saved sysctl. removed tells whether it did. A directory that holds files of others stays.
func (s *Store) Remove(ctx context.Context) (removed bool, err error) {
	if !exists(s.dir) {
		return false, nil
	}
	err = s.locked(ctx, unix.LOCK_EX, func(died int) error {
		removed = true
		if exists(s.dbPath()) {
			look := func(tx *Tx) (err error) {
				removed, err = tx.Empty()
				return err
			}
			if lookErr := s.transact(ctx, true, died, look); lookErr != nil || !removed {
				return lookErr
			}
		}
		return s.removeFiles()
	})
	return removed && err == nil, err
}

func (s *Store) removeFiles() error {
	if err := removeDeadHolds(s.dir); err != nil {
		return err
	}
	// Unreadable files that were set aside speak of attachments that are gone.
	paths, err := filepath.Glob(s.dbPath() + ".corrupt-*")
	if err != nil {
		return fmt.Errorf("remove state: %w", err)
	}
	// The counters of calls, and those whose maker was killed (package counts); what the agent remembers (package journal).
	more, err := filepath.Glob(filepath.Join(s.dir, "calls.*.new"))
	if err != nil {
		return fmt.Errorf("remove state: %w", err)
	}
	paths = append(paths, more...)
	for _, name := range []string{
		"state.db", "state.db.previous-boot", "state.db.new", "calls", "tapird.json", "tapird.json.corrupt", "tapird.json.new", "adding", "lock", ".",
	} {
		paths = append(paths, filepath.Join(s.dir, name))
	}
	for _, path := range paths {
		err := os.Remove(path)
		if path == s.dir && errors.Is(err, unix.EROFS) {
			continue // in a container it is a mount in a root that cannot be written
		}
		// A directory stays that has a hold in it, or something of others.
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("remove state: %w", err)
		}
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// readBootID is the kernel's id of this boot (Documentation/admin-guide/sysctl/kernel.rst).
var readBootID = sync.OnceValues(func() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	return strings.TrimSpace(string(id)), nil
})

// sinceBoot is CLOCK_BOOTTIME, which no one can set back and which the state never outlives.
func sinceBoot() time.Duration {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
