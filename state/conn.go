package state

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// conn is the open file with its one transaction.
type conn struct {
	path string
	file *os.File // bbolt's own file, for when bbolt can no longer close it
	db   *bbolt.DB
	tx   *bbolt.Tx
}

// mmapSize is what bbolt maps at once; a larger file is mapped anew. It is address space, not memory.
const mmapSize = 64 << 20

// transact runs fn in one transaction on the file, which is set aside and rebuilt where it is unreadable. The caller
// has the lock, under which as many writers died in a row. A transaction that does not write gives the error that a
// rebuild would be tried for.
func (s *Store) transact(ctx context.Context, write bool, died int, fn func(*Tx) error) error {
	var err error
	if died >= maxDied && exists(s.dbPath()) {
		err = &corruptError{path: s.dbPath(), cause: fmt.Errorf("the last %d processes that wrote it died of it", died)}
	} else {
		err = s.attempt(ctx, write, nil, fn)
	}
	if !write {
		return err
	}
	var stale *staleError
	switch {
	case errors.As(err, &stale):
		s.log.Info("state is of an earlier boot; starting anew", "file", s.dbPath(), "bootId", stale.bootID)
		if err := os.Rename(s.dbPath(), s.dbPath()+".previous-boot"); err != nil {
			return fmt.Errorf("set the state of an earlier boot aside: %w", err)
		}
		return s.attempt(ctx, write, nil, fn)
	case isCorrupt(err):
		// First the scan, then the rename: where the kernel cannot be asked, the next process finds the file as it was.
		found, scanErr := s.rebuild(ctx)
		if scanErr != nil {
			return &corruptError{path: s.dbPath(), cause: errors.Join(err, scanErr), final: true}
		}
		aside, renameErr := setAside(s.dbPath(), time.Now())
		if renameErr != nil {
			return &corruptError{path: s.dbPath(), cause: errors.Join(err, renameErr), final: true}
		}
		s.log.Error("state was unreadable; rebuilt it from the kernel",
			"error", err, "attachments", len(found), "kept", aside)
		err = s.attempt(ctx, write, &found, fn)
		if isCorrupt(err) {
			return &corruptError{path: s.dbPath(), cause: err, final: true}
		}
	}
	return err
}

// attempt runs fn in one transaction. found are the attachments to begin a new file with; nil asks the kernel.
func (s *Store) attempt(ctx context.Context, write bool, found *[]Attachment, fn func(*Tx) error) (err error) {
	// bbolt follows page numbers that it reads from the file into the mapping: beyond the file's end that is SIGBUS.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	c, err := s.open(write)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := c.close(); err == nil {
			err = closeErr
		}
	}()
	tx := &Tx{b: c.tx, path: c.path, now: s.now, writable: write}
	known, err := s.checkMeta(tx)
	if err != nil {
		return err
	}
	if !known {
		if !write {
			return &staleError{} // it was never filled: a writer does that
		}
		if err := s.fill(ctx, tx, found); err != nil {
			return err
		}
	}
	if err := fn(tx); err != nil || !write {
		return err
	}
	size := c.tx.Size()
	if err := guard(c.path, "commit", c.tx.Commit); err != nil {
		return err
	}
	if c.wasteful(size) {
		if err := c.compact(); err != nil {
			s.log.Warn("the state stays larger than it need be", "error", err) // what was asked for is done
		}
	}
	return nil
}

// open opens the file and begins a transaction. Errors of the system name the file; others are for a rebuild.
func (s *Store) open(write bool) (*conn, error) {
	c := &conn{path: s.dbPath()}
	if info, err := os.Stat(c.path); err == nil {
		switch size := info.Size(); {
		case size == 0 && !write:
			return nil, &staleError{} // bbolt would begin to fill it, and cannot
		case size > 0 && size < int64(4*os.Getpagesize()):
			return nil, &corruptError{path: c.path, cause: fmt.Errorf("file has %d bytes, less than the four pages of an empty one", size)}
		}
	}
	opts := &bbolt.Options{
		Timeout: s.lockWait, NoSync: true, NoGrowSync: true, ReadOnly: !write,
		FreelistType: bbolt.FreelistArrayType, InitialMmapSize: mmapSize,
		OpenFile: func(name string, flag int, mode os.FileMode) (f *os.File, err error) {
			c.file, err = os.OpenFile(name, flag, mode)
			return c.file, err
		},
	}
	err := guard(c.path, "open", func() (err error) {
		c.db, err = bbolt.Open(c.path, 0o600, opts)
		if err == nil {
			c.tx, err = c.db.Begin(write)
		}
		return err
	})
	switch {
	case err == nil:
		return c, nil
	case errors.Is(err, berrors.ErrTimeout):
		return nil, c.abandon(&LockedError{Path: c.path, Wait: s.lockWait})
	case errors.Is(err, berrors.ErrInvalid), errors.Is(err, berrors.ErrChecksum), errors.Is(err, berrors.ErrVersionMismatch):
		err = &corruptError{path: c.path, cause: err}
	case isCorrupt(err):
	default:
		err = fmt.Errorf("open state: %w", err)
	}
	return nil, c.abandon(err)
}

// close undoes the transaction if it was not committed, and closes the file.
func (c *conn) close() error {
	err := guard(c.path, "roll back", func() error {
		err := c.tx.Rollback()
		if errors.Is(err, berrors.ErrTxClosed) {
			return nil
		}
		return err
	})
	if err != nil {
		// bbolt's own locks are still taken: its Close would wait for ever. Its mapping of the file stays.
		return c.abandon(err)
	}
	return guard(c.path, "close", c.db.Close)
}

// abandon closes the file behind bbolt's back, which ends bbolt's lock on it, and returns err.
func (c *conn) abandon(err error) error {
	if c.file != nil {
		c.file.Close() // closed already where bbolt did it
	}
	return err
}

// guard turns a panic of bbolt, which is how it reports most damage, into an error that asks for a rebuild.
func guard(path, doing string, fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &corruptError{path: path, cause: fmt.Errorf("%s: %v", doing, p)}
		}
	}()
	return fn()
}

// maxAside is how many unreadable files are kept.
const maxAside = 3

// setAside renames an unreadable file and removes the oldest of those that were set aside before.
func setAside(path string, now time.Time) (string, error) {
	aside := path + ".corrupt-" + now.UTC().Format("20060102T150405.000000000Z")
	if err := os.Rename(path, aside); err != nil {
		return "", fmt.Errorf("set state aside: %w", err)
	}
	old, err := filepath.Glob(path + ".corrupt-*")
	if err != nil || len(old) <= maxAside {
		return aside, nil
	}
	slices.Sort(old)
	for _, name := range old[:len(old)-maxAside] {
		_ = os.Remove(name) // kept for people to look at; one too many does no harm
	}
	return aside, nil
}
