package install

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Uninstall takes away what Run put there: the configuration, or tapir out of the one that was extended, and the plugins. While attachments are
// left the plugins stay, since the runtime needs them for each DEL; attachments is their number, force removes the plugins all the same. What it does
// it says on out.
func Uninstall(o Options, attachments int, force bool, out io.Writer) error {
	i := New(Config{Options: o})
	var errs []error
	if i.c.Mode != ModeBinaries {
		errs = append(errs, i.removeConf(out))
	}
	if attachments > 0 && !force {
		_, err := fmt.Fprintf(out, "kept the plugins in %s: %d attachments are left, and the runtime calls them for each DEL; uninstall again when they are gone\n", i.c.CNIBinDir, attachments)
		return errors.Join(append(errs, err)...)
	}
	for _, name := range programs {
		errs = append(errs, remove(filepath.Join(i.c.CNIBinDir, name), out))
	}
	if i.c.BinDir != "" {
		errs = append(errs, remove(filepath.Join(i.c.BinDir, tool), out))
	}
	for _, dir := range []string{i.c.CNIBinDir, i.confDir()} {
		errs = append(errs, sweep(dir))
	}
	return errors.Join(errs...)
}

// removeConf removes tapir's configuration, or puts the original back in place of the extended one.
func (i *Installer) removeConf(out io.Writer) error {
	if i.c.Mode != ModeChained {
		path := filepath.Join(i.confDir(), i.c.Name)
		if data, err := os.ReadFile(path); err == nil {
			if l, err := parse(data); err == nil && l.ours() == nil {
				return fmt.Errorf("%s: it does not call tapir; it is left alone", path)
			}
		}
		if err := remove(path, out); err != nil {
			return err
		}
		if i.c.Mode == ModeRuntimeClass {
			_ = os.Remove(i.confDir()) // others may have files there
		}
		return nil
	}
	kept, err := filepath.Glob(filepath.Join(i.c.CNIConfDir, "*"+original("")))
	if err != nil {
		return err
	}
	var errs []error
	for _, from := range kept {
		errs = append(errs, putBack(from, from[:len(from)-len(original(""))], out))
	}
	return errors.Join(errs...)
}

// putBack puts an original back, unless its owner has written or removed the file since.
func putBack(from, to string, out io.Writer) error {
	data, err := os.ReadFile(to)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return remove(from, out)
	case err != nil:
		return err
	}
	if l, err := parse(data); err != nil || l.ours() == nil {
		return remove(from, out)
	}
	if err := os.Rename(from, to); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "put back %s\n", to)
	return errors.Join(err, syncDir(filepath.Dir(to)))
}

func remove(path string, out io.Writer) error {
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "removed %s\n", path)
	return err
}
