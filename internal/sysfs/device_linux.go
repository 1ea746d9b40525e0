// Package sysfs reads and writes /sys/class/net/NAME of a device in another network namespace. A sysfs shows the namespace of the thread
// that made it, so one is made in a moment on a thread that enters the namespace and leaves it; after that an open folder is
// enough, from any thread. Such a folder keeps the memory of a namespace and not the namespace: it can be taken down.
package sysfs

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/tapir-cni/tapir/internal/netns"
	"golang.org/x/sys/unix"
)

// Device is the open folder of a device. Methods may be called by several goroutines at once; after Close they give [os.ErrClosed].
type Device struct {
	name string

	mu      sync.RWMutex
	dir     int // -1: closed
	numbers map[string]int
}

// Open opens the folder of the device in the network namespace at path; "" is the calling thread's. It needs CAP_SYS_ADMIN, and
// gives EPERM without; [unix.ENOENT] where there is no such device or path; ENOSYS before Linux 5.2.
func Open(path, name string) (*Device, error) {
	if name == "" || strings.ContainsAny(name, "/") || name == "." || name == ".." {
		return nil, fmt.Errorf("open the sysfs of %q: want a device's name", name)
	}
	d := &Device{name: name, dir: -1, numbers: map[string]int{}}
	err := netns.Within(path, func() error {
		root, err := mount()
		if err != nil {
			return err
		}
		defer unix.Close(root)
		d.dir, err = unix.Openat(root, "class/net/"+name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open the sysfs of %q: %w", name, err)
	}
	return d, nil
}

// Close lets go of the folder.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dir == -1 {
		return os.ErrClosed
	}
	errs := []error{os.NewSyscallError("close", unix.Close(d.dir))}
	for _, fd := range d.numbers {
		errs = append(errs, os.NewSyscallError("close", unix.Close(fd)))
	}
	d.dir, d.numbers = -1, nil
	return errors.Join(errs...)
}

// Read reads a file of the folder, as in "queues/rx-0/rps_cpus", without the newline at its end. A device that is gone gives ENODEV or ENOENT.
func (d *Device) Read(file string) (string, error) {
	f, err := d.open(file, unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, err := io.ReadAll(f)
	if err != nil {
		return "", fmt.Errorf("read %s of %q: %w", file, d.name, cause(err))
	}
	return strings.TrimSuffix(string(data), "\n"), nil
}

// Write writes to a file of the folder. The kernel's answer is the error: [unix.EOPNOTSUPP] for "threaded" of a TAP that has no
// queue with NAPI.
func (d *Device) Write(file, value string) error {
	f, err := d.open(file, unix.O_WRONLY)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	if err = errors.Join(cause(err), f.Close()); err != nil {
		return fmt.Errorf("write %q to %s of %q: %w", value, file, d.name, err)
	}
	return nil
}

// Number reads a file that holds a number. The file stays open, so that the next time costs one system call.
func (d *Device) Number(file string) (int, error) {
	n, ok, err := d.again(file)
	if !ok {
		n, err = d.first(file)
	}
	if err != nil {
		return 0, fmt.Errorf("read %s of %q: %w", file, d.name, err)
	}
	return n, nil
}

// again reads a file that is open.
func (d *Device) again(file string) (n int, ok bool, err error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	fd, ok := d.numbers[file]
	if ok {
		n, err = readNumber(fd)
	}
	return n, ok, err
}

// first opens a file and reads it.
func (d *Device) first(file string) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dir == -1 {
		return 0, os.ErrClosed
	}
	fd, err := unix.Openat(d.dir, file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	if other, ok := d.numbers[file]; ok {
		_ = unix.Close(other) // of who was as fast
	}
	d.numbers[file] = fd
	return readNumber(fd)
}

func readNumber(fd int) (int, error) {
	var buf [32]byte
	got, err := unix.Pread(fd, buf[:], 0)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(buf[:got])))
}

func (d *Device) open(file string, flags int) (*os.File, error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.dir == -1 {
		return nil, fmt.Errorf("open %s of %q: %w", file, d.name, os.ErrClosed)
	}
	fd, err := unix.Openat(d.dir, file, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s of %q: %w", file, d.name, err)
	}
	return os.NewFile(uintptr(fd), file), nil
}

// cause is the errno of a file's error: its path means nothing to anybody.
func cause(err error) error {
	if path, ok := errors.AsType[*os.PathError](err); ok {
		return path.Err
	}
	return err
}

// mount makes a sysfs of the calling thread's network namespace, which is mounted nowhere.
func mount() (int, error) {
	fs, err := unix.Fsopen("sysfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, os.NewSyscallError("fsopen", err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, os.NewSyscallError("fsconfig", err)
	}
	root, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	return root, os.NewSyscallError("fsmount", err)
}
