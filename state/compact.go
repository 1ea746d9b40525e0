package state

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"go.etcd.io/bbolt"
)

// bbolt never gives pages back, and each opening reads the list of the free ones: after a peak every call would pay for
// it for ever. A file that is mostly free pages is therefore written anew. compactAbove is the number of free pages, of
// 4 KB, that are worth it.
const compactAbove = 1024

// wasteful tells, after a commit, whether the file should be written anew.
func (c *conn) wasteful(size int64) bool {
	stats := c.db.Stats()
	free := int64(stats.FreePageN + stats.PendingPageN)
	return free > compactAbove && free*int64(c.db.Info().PageSize)*2 > size
}

// compact writes the file anew, beside it, and renames it into place. The caller has the lock of the state, and its
// transaction is committed. A process that is killed meanwhile leaves a file that the next compaction overwrites.
func (c *conn) compact() error {
	path := c.path + ".new"
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("compact state: %w", err)
	}
	err := guard(c.path, "compact", func() error {
		to, err := bbolt.Open(path, 0o600, &bbolt.Options{
			NoSync: true, NoGrowSync: true, NoStatistics: true, FreelistType: bbolt.FreelistArrayType, InitialMmapSize: mmapSize,
		})
		if err != nil {
			return err
		}
		return errors.Join(bbolt.Compact(to, c.db, 0), to.Close())
	})
	if err == nil {
		err = os.Rename(path, c.path)
	}
	if err != nil {
		return fmt.Errorf("compact state %q: %w", c.path, errors.Join(err, os.Remove(path)))
	}
	return nil
}
