package harness

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// cgroupRoot is where the harness mounts the hierarchies: the machine's own mounts are hidden in a test's namespaces.
func cgroupRoot(c *Cluster) string { return filepath.Join(c.Dir, "cgroup") }

// mountCgroups mounts each hierarchy that this process is in, and gives the folder of its own group in each.
func (c *Cluster) mountCgroups() (own []string, err error) {
	data, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	root := cgroupRoot(c)
	legacy := strings.Count(string(data), "\n") > 1
	for line := range strings.Lines(string(data)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		dir, kind, options := root, "cgroup2", ""
		switch {
		case f[1] == "" && legacy:
			dir = filepath.Join(root, "unified")
		case strings.HasPrefix(f[1], "name="):
			dir, kind, options = filepath.Join(root, strings.TrimPrefix(f[1], "name=")), "cgroup", "none,"+f[1]
		case f[1] != "":
			dir, kind, options = filepath.Join(root, f[1]), "cgroup", f[1]
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		if !isMount(dir) {
			if err := unix.Mount("cgroup", dir, kind, 0, options); err != nil {
				return nil, fmt.Errorf("mount cgroup %q: %w", f[1], err)
			}
		}
		own = append(own, filepath.Join(dir, f[2]))
	}
	return own, nil
}

func isMount(dir string) bool {
	var here, above unix.Stat_t
	return unix.Stat(dir, &here) == nil && unix.Stat(filepath.Dir(dir), &above) == nil && here.Dev != above.Dev
}

// makeCgroups makes a group for the node in each hierarchy. Groups of an earlier life would make the kubelet wait for their containers.
func (n *Node) makeCgroups() error {
	own, err := n.c.mountCgroups()
	if err != nil {
		return err
	}
	if err := n.removeCgroups(); err != nil {
		return err
	}
	n.cgroups = nil
	for _, dir := range own {
		group := filepath.Join(dir, n.c.id+"-"+n.Name)
		if err := os.Mkdir(group, 0o755); err != nil {
			return err
		}
		n.cgroups = append(n.cgroups, group)
		// A cpuset begins empty, and nothing can run in it.
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			if value, err := os.ReadFile(filepath.Join(dir, file)); err == nil {
				if err := os.WriteFile(filepath.Join(group, file), value, 0o644); err != nil {
					return err
				}
			}
		}
		if clone := filepath.Join(group, "cgroup.clone_children"); fileIs(clone) {
			if err := os.WriteFile(clone, []byte("1"), 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

func fileIs(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// removeCgroups removes the node's groups, the inner ones first. It fails while a process is in one.
func (n *Node) removeCgroups() error {
	for _, group := range n.cgroups {
		var dirs []string
		err := filepath.WalkDir(group, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		})
		if err != nil {
			return err
		}
		for i := range dirs {
			if err := unix.Rmdir(dirs[len(dirs)-1-i]); err != nil && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("remove cgroup %s: %w", dirs[len(dirs)-1-i], err)
			}
		}
	}
	return nil
}

// unmountCgroups takes away what mountCgroups made.
func (c *Cluster) unmountCgroups() error {
	root := cgroupRoot(c)
	entries, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if dir := filepath.Join(root, e.Name()); isMount(dir) {
			errs = append(errs, unix.Unmount(dir, unix.MNT_DETACH))
		}
	}
	if isMount(root) {
		errs = append(errs, unix.Unmount(root, unix.MNT_DETACH))
	}
	return errors.Join(errs...)
}
