package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// The kinds of objects, as they are printed.
const (
	kindLink      = "link"
	kindAddress   = "address"
	kindRoute     = "route"
	kindRule      = "rule"
	kindNeighbour = "neighbour"
	kindTable     = "nft table"
	kindMount     = "mount"
	kindPin       = "BPF pin"
	kindFile      = "file"
	kindSysctl    = "sysctl"
	kindCgroup    = "cgroup"
)

var kinds = []string{
	kindLink, kindAddress, kindRoute, kindRule, kindNeighbour, kindTable, kindMount, kindPin, kindFile, kindSysctl, kindCgroup,
}

// directories are searched for files: what is transient, and what CNI plugins and runtimes keep.
var directories = []string{"/run", "/var/lib/cni", "/etc/cni", "/opt/cni"}

// look takes the state of the machine, of the network namespace and the mounts that this process is in.
func look() (state, error) {
	s := make(state)
	for _, part := range []func(state) error{links, addresses, routes, rules, neighbours, tables, mounts, pins, files, sysctls, cgroups} {
		if err := part(s); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// tables records each nft table with its whole text, counters left out.
func tables(s state) error {
	// "list ruleset" gives nothing, and no error, where the kernel has no nf_tables.
	out, err := exec.Command("nft", "--stateless", "list", "ruleset").CombinedOutput()
	if err != nil {
		return fmt.Errorf("nft list ruleset: %w: %s", err, out)
	}
	for table := range strings.SplitSeq(string(out), "\n}\n") {
		if heading, _, ok := strings.Cut(table, " {"); ok {
			s.add(kindTable, strings.TrimPrefix(strings.TrimSpace(heading), "table "), table)
		}
	}
	return nil
}

// mounts records this process's mounts: mount point and type, fields 5 and the one after "-" of proc(5)'s mountinfo.
func mounts(s state) error {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		left, right, ok := strings.Cut(lines.Text(), " - ")
		fields, kind := strings.Fields(left), strings.Fields(right)
		if !ok || len(fields) < 5 || len(kind) < 1 {
			return fmt.Errorf("/proc/self/mountinfo: cannot read line %q", lines.Text())
		}
		s.add(kindMount, fields[4], kind[0])
	}
	return lines.Err()
}

// pins records everything under the bpffs, where one is mounted.
func pins(s state) error {
	const root = "/sys/fs/bpf"
	var st unix.Statfs_t
	if err := unix.Statfs(root, &st); err != nil || st.Type != unix.BPF_FS_MAGIC {
		return nil //nolint:nilerr // no bpffs has no pins; that one was mounted is seen among the mounts
	}
	return walk(s, kindPin, root)
}

// files records the files of the directories and tapir's own temporary files, without what is in them.
func files(s state) error {
	roots := directories
	temporary, err := filepath.Glob(filepath.Join(os.TempDir(), "tapir*"))
	if err != nil {
		return err
	}
	for _, root := range append(roots[:len(roots):len(roots)], temporary...) {
		if err := walk(s, kindFile, root); err != nil {
			return err
		}
	}
	return nil
}

func walk(s state, kind, root string) error {
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist): // root itself, or removed while we walk
			return nil
		case err != nil:
			return err
		}
		s.add(kind, path, entry.Type().String())
		return nil
	})
}

// sysctlRoots are what tests could change: networking, and what a kubelet sets.
var sysctlRoots = []string{"net", "vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys"}

// sysctls records what can be read there and does not count by itself.
func sysctls(s state) error {
	for _, root := range sysctlRoots {
		err := filepath.WalkDir("/proc/sys/"+root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || entry.Name() == "nf_conntrack_count" {
				return ignoreGone(err)
			}
			value, err := os.ReadFile(path)
			if err != nil {
				return nil //nolint:nilerr // some are for writing alone, some are of a link that has just gone
			}
			s.add(kindSysctl, strings.TrimPrefix(path, "/proc/sys/"), strings.TrimSpace(string(value)))
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// cgroups records the groups whose name begins as those of test/cluster, with what is in them. Others come and go with the machine's own work.
func cgroups(s state) error {
	const prefix = "tapir-"
	return filepath.WalkDir("/sys/fs/cgroup", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return ignoreGone(err)
		}
		if entry.IsDir() && strings.Contains(path, "/"+prefix) {
			s.add(kindCgroup, path, "")
		}
		return nil
	})
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
