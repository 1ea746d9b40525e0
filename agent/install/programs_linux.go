package install

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/containernetworking/cni/libcni"
	"golang.org/x/sys/unix"
)

// program is one that is installed.
type program struct{ from, to string }

// copies are the programs that are installed.
func (i *Installer) copies() (all []program) {
	for _, name := range programs {
		all = append(all, program{filepath.Join(i.c.From, name), filepath.Join(i.c.CNIBinDir, name)})
	}
	if i.c.BinDir != "" {
		all = append(all, program{filepath.Join(i.c.From, tool), filepath.Join(i.c.BinDir, tool)})
	}
	return all
}

// stamp is what tells that a file is the one that was looked at: whoever writes it changes its ctime.
type stamp struct {
	dev, ino     uint64
	size         int64
	mode         uint32
	mtime, ctime unix.Timespec
}

// pair is the stamps of a program and of its copy.
type pair struct{ from, to stamp }

func stampOf(path string) (stamp, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return stamp{}, &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	return stamp{dev: st.Dev, ino: st.Ino, size: st.Size, mode: st.Mode, mtime: st.Mtim, ctime: st.Ctim}, nil
}

func pairOf(p program) (pair, error) {
	from, err := stampOf(p.from)
	if err != nil {
		return pair{}, err
	}
	to, err := stampOf(p.to)
	return pair{from, to}, err
}

// copy installs one program. Its bytes are compared where one of the two files is another than last time.
func (i *Installer) copy(p program) (changed bool, err error) {
	before, err := pairOf(p)
	if err == nil && i.same[p.to] == before {
		return false, nil
	}
	if changed, err = copyProgram(p.from, p.to); err != nil {
		return changed, err
	}
	after, err := pairOf(p)
	if err == nil && (changed || after == before) {
		i.same[p.to] = after
	}
	return changed, ignoreNotExist(err) // removed again already: the next look sees it
}

// statusTimeout bounds what the plugins take to say that they can work.
const statusTimeout = 20 * time.Second

// usable tells whether an ADD could work: every plugin is there, and those of the template say so themselves (STATUS). tapir is asked whatever
// the list's version; the others where the runtime asks them too. Those of a network that is extended are not asked here: what they need may
// be on the node and not in tapird's container, and they worked before.
func (i *Installer) usable(ctx context.Context, t target) error {
	for _, kind := range t.list.types() {
		if err := executable(i.c.CNIBinDir, kind); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	own := list{keys: map[string]any{"cniVersion": "1.1.0", "name": t.list.keys["name"]}, plugins: []map[string]any{t.list.ours()}}
	if err := i.status(ctx, own); err != nil {
		return fmt.Errorf("STATUS of tapir: %w", err)
	}
	if t.foreign {
		return nil
	}
	if others := t.list.without(); len(others.plugins) > 0 {
		if err := i.status(ctx, others); err != nil {
			return fmt.Errorf("STATUS of the plugins beside tapir: %w", err)
		}
	}
	return nil
}

func executable(dir, kind string) error {
	info, err := os.Stat(filepath.Join(dir, kind))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("the program %q is not in %s", kind, dir)
	case err != nil:
		return err
	case !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0:
		return fmt.Errorf("the program %q in %s cannot be executed", kind, dir)
	}
	return nil
}

// status asks all plugins of a list, where the CNI version of the list has STATUS (1.1.0).
func (i *Installer) status(ctx context.Context, l list) error {
	data, err := l.write()
	if err != nil {
		return err
	}
	conf, err := libcni.NetworkConfFromBytes(data)
	if err != nil {
		return err
	}
	// STATUS is kept in no cache.
	return libcni.NewCNIConfigWithCacheDir([]string{i.c.CNIBinDir}, os.TempDir(), nil).GetStatusNetworkList(ctx, conf)
}
