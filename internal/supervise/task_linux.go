package supervise

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// tunRdev is the tun driver's device number: misc, minor 200 (include/linux/miscdevice.h, TUN_MINOR).
var tunRdev = unix.Mkdev(10, 200)

// ifreq is struct ifreq as TUNSETIFF reads and writes it: the device's name, then 16 bits of flags.
type ifreq [40]byte

func (r *ifreq) name() string {
	name := r[:unix.IFNAMSIZ-1] // the driver cuts there
	if end := bytes.IndexByte(name, 0); end >= 0 {
		name = name[:end]
	}
	return string(name)
}

func (r *ifreq) flags() uint16 { return binary.NativeEndian.Uint16(r[unix.IFNAMSIZ:]) }

// namesOneTAP says whether the request is for one TAP that is there already, whatever its name.
func (r *ifreq) namesOneTAP() bool {
	const tunExcl = 0x8000 // IFF_TUN_EXCL: only a new device
	kind := r.flags() & (unix.IFF_TUN | unix.IFF_TAP)
	return kind == unix.IFF_TAP && r.flags()&tunExcl == 0 && r.name() != "" && !strings.Contains(r.name(), "%")
}

// task is the thread that waits in TUNSETIFF. Its handles stay its own, whatever becomes of its number.
type task struct {
	tid   int
	pidfd int
	mem   int
	credentials
}

// openTask opens the task by its number; the caller then asks whether it was the right one.
func openTask(tid int) (*task, error) {
	creds, err := readCredentials(tid)
	if err != nil {
		return nil, fmt.Errorf("credentials: %w", err)
	}
	pidfd, err := openPidfd(tid)
	if err != nil {
		return nil, fmt.Errorf("pidfd: %w", err)
	}
	mem, err := unix.Open(fmt.Sprintf("/proc/%d/mem", tid), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		_ = unix.Close(pidfd)
		return nil, fmt.Errorf("memory: %w%s", err, ptraceHint(err))
	}
	return &task{tid: tid, pidfd: pidfd, mem: mem, credentials: creds}, nil
}

// openPidfd takes threads too, which kernels before 6.9 do not: there the thread's process is opened, whose files are the
// same unless the thread has unshared them.
func openPidfd(tid int) (int, error) {
	pidfd, err := unix.PidfdOpen(tid, unix.PIDFD_THREAD)
	if !errors.Is(err, unix.EINVAL) {
		return pidfd, err
	}
	tgid, err := threadGroup(tid)
	if err != nil {
		return -1, err
	}
	return unix.PidfdOpen(tgid, 0)
}

func threadGroup(tid int) (tgid int, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	if err != nil {
		return 0, err
	}
	_, rest, found := strings.Cut(string(text), "\nTgid:\t")
	if !found {
		return 0, fmt.Errorf("/proc/%d/status: no Tgid", tid)
	}
	_, err = fmt.Sscan(rest, &tgid)
	return tgid, err
}

func ptraceHint(err error) string {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return "; the supervisor needs CAP_SYS_PTRACE for a VMM of another user"
	}
	return ""
}

func (t *task) close() {
	_ = unix.Close(t.pidfd)
	_ = unix.Close(t.mem)
}

// readIfreq gives false where the kernel would give EFAULT.
func (t *task) readIfreq(address uint64) (r ifreq, ok bool) {
	n, err := unix.Pread(t.mem, r[:], int64(address))
	return r, err == nil && n == len(r)
}

func (t *task) writeIfreq(address uint64, r ifreq) error {
	if n, err := unix.Pwrite(t.mem, r[:], int64(address)); err != nil || n != len(r) {
		return unix.EFAULT
	}
	return nil
}

// tunFile is the task's open file of the tun driver, with the netns that it belongs to. Both are plain fds: [os.File] would
// set O_NONBLOCK aside, which the VMM's fd shares.
type tunFile struct{ fd, netns int }

func (f tunFile) close() {
	_ = unix.Close(f.fd)
	_ = unix.Close(f.netns)
}

// openTun takes a copy of the task's fd. One that is not the tun driver's gives ok == false.
func (t *task) openTun(fd int) (f tunFile, ok bool, err error) {
	f.fd, err = unix.PidfdGetfd(t.pidfd, fd, 0)
	if errors.Is(err, unix.EBADF) {
		return f, false, nil
	}
	if err != nil {
		return f, false, fmt.Errorf("fd %d: %w%s", fd, err, ptraceHint(err))
	}
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR || uint64(st.Rdev) != tunRdev {
		_ = unix.Close(f.fd)
		return f, false, err
	}
	// SIOCGSKNS, Linux 4.17: the netns in which the file was opened, where it looks names up.
	if f.netns, err = unix.IoctlRetInt(f.fd, unix.SIOCGSKNS); err != nil {
		_ = unix.Close(f.fd)
		return f, false, fmt.Errorf("netns of fd %d: %w", fd, err)
	}
	return f, true, nil
}
