package testnode

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// settle is how long a leftover may take to go: the kernel dismantles links and netns after the call that removed them,
// and goroutines close their files after the test that started them.
const settle = 3 * time.Second

// inventory is what a node holds, one line an object: "link eth0", "netns s1", "mount tmpfs /run", "pin tapir/x",
// "fd /dev/net/tun", "process 12 sleep".
type inventory []string

func takeInventory() (inventory, error) {
	// The runtime's own epoll and eventfd are opened at the first poll: let that happen before the first look.
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	_ = r.Close()
	_ = w.Close()
	return look()
}

// leftovers lists what is there now and was not in the inventory, when it has had time to settle.
func (all inventory) leftovers() ([]string, error) {
	for deadline := time.Now().Add(settle); ; time.Sleep(20 * time.Millisecond) {
		now, err := look()
		if err != nil {
			return nil, err
		}
		left := now.minus(all)
		if len(left) == 0 || time.Now().After(deadline) {
			return left, nil
		}
	}
}

// minus is the multiset difference: two fds on one file are two objects.
func (all inventory) minus(others inventory) []string {
	count := make(map[string]int)
	for _, s := range others {
		count[s]++
	}
	var left []string
	for _, s := range all {
		if count[s]--; count[s] < 0 {
			left = append(left, s)
		}
	}
	slices.Sort(left)
	return left
}

func look() (inventory, error) {
	var all inventory
	for _, list := range []func() ([]string, error){links, netnsFiles, mounts, pins, files, children} {
		some, err := list()
		if err != nil {
			return nil, fmt.Errorf("take inventory: %w", err)
		}
		all = append(all, some...)
	}
	return all, nil
}

func links() ([]string, error) {
	ifaces, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, i := range ifaces {
		out = append(out, "link "+i.Name)
	}
	return out, nil
}

func netnsFiles() ([]string, error) {
	entries, err := os.ReadDir(netnsDir)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		out = append(out, "netns "+e.Name())
	}
	return out, nil
}

func mounts() ([]string, error) {
	data, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, err
	}
	var out []string
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) > 2 {
			out = append(out, "mount "+f[2]+" "+f[1])
		}
	}
	return out, nil
}

func pins() ([]string, error) {
	const root = "/sys/fs/bpf"
	var out []string
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err == nil && path != root {
			out = append(out, "pin "+strings.TrimPrefix(path, root+"/"))
		}
		return err
	})
	return out, err
}

// files lists open files by what they are; numbers of pipes and sockets are cut, since another pipe is as good a pipe.
func files() ([]string, error) {
	const dir = "/proc/self/fd"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil {
			continue // the directory's own fd, closed by now
		}
		if kind, _, ok := strings.Cut(target, ":["); ok {
			target = kind
		}
		out = append(out, "fd "+target)
	}
	return out, nil
}

// children lists processes that this one started and that have not ended, or were never waited for.
func children() ([]string, error) {
	lists, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		return nil, err
	}
	var out []string
	for _, list := range lists {
		data, err := os.ReadFile(list)
		if err != nil {
			continue // the thread has ended
		}
		for _, pid := range strings.Fields(string(data)) {
			name, err := os.ReadFile("/proc/" + pid + "/comm")
			if err != nil {
				continue // the process has ended
			}
			out = append(out, "process "+pid+" "+strings.TrimSpace(string(name)))
		}
	}
	return out, nil
}
