package supervise

import (
	"errors"
	"fmt"
	"io"
	"log/slog"

	"golang.org/x/sys/unix"
)

// Ask is a TUNSETIFF for one TAP by its name.
type Ask struct {
	Name    string
	Flags   uint16 // IFF_*, as the VMM sets them
	Netns   int    // fd of the netns in which the name is looked up; open until [Config.Decide] returns
	TID     int    // of the thread that asks
	Program string // its comm
}

// Answer is what becomes of an [Ask].
type Answer struct {
	Supervise  bool       // false: the kernel carries the call out as it was made, and the rest does not matter
	Attachment string     // for the log
	Flags      uint16     // to open with
	Refuse     unix.Errno // not 0: the VMM gets this errno, and nothing is opened
	Reason     string     // of the refusal, for the log
}

// Config says what to supervise.
type Config struct {
	// Decide is called once for each ask, for one at a time. On an error the call goes on as it was made.
	Decide func(Ask) (Answer, error)
	Logger *slog.Logger // one line for each TAP opened, refused or left alone

	// ChildArgs are the arguments with which this executable calls [Child] with those that it is given behind them.
	ChildArgs []string
}

// serve answers until no task has the filter any more.
func serve(l listener, c Config) error {
	for {
		n, err := l.receive()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := l.send(answer(l, c, n)); err != nil {
			return err
		}
	}
}

// answer finds out who asks for what, has it decided, and does it.
func answer(l listener, c Config, n notification) response {
	log := c.Logger.With("tid", n.tid)
	if n.tid == 0 {
		log.Error("left a TUNSETIFF alone", "error", "the task is in a pid namespace that is not below the supervisor's")
		return n.untouched()
	}
	t, err := openTask(int(n.tid))
	if err != nil {
		if l.valid(n) { // else the task was killed
			log.Error("left a TUNSETIFF alone", "error", err)
		}
		return n.untouched()
	}
	defer t.close()
	req, readable := t.readIfreq(n.args[2])
	if !l.valid(n) || !readable || !req.namesOneTAP() {
		return n.untouched()
	}
	log = log.With("program", t.program, "tap", req.name())
	f, isTun, err := t.openTun(int(int32(n.args[0])))
	if err != nil {
		log.Error("left a TUNSETIFF alone", "error", err)
		return n.untouched()
	}
	if !isTun {
		return n.untouched()
	}
	defer f.close()
	a, err := c.Decide(Ask{Name: req.name(), Flags: req.flags(), Netns: f.netns, TID: t.tid, Program: t.program})
	if err != nil {
		log.Error("left a TUNSETIFF alone", "error", err)
		return n.untouched()
	}
	if !a.Supervise {
		log.Debug("left a TUNSETIFF alone", "error", "the device is not one to supervise")
		return n.untouched()
	}
	log = log.With("attachment", a.Attachment, "asked", hex(req.flags()))
	if a.Refuse != 0 {
		log.Warn("refused to open tap", "errno", unix.ErrnoName(a.Refuse), "reason", a.Reason)
		return n.result(a.Refuse)
	}
	return n.result(t.open(f, req, n.args[2], a, log.With("opened", hex(a.Flags))))
}

func hex(flags uint16) string { return fmt.Sprintf("%#x", flags) }

// open makes the call with the task's rights and writes into its memory what the kernel would have written.
func (t *task) open(f tunFile, req ifreq, address uint64, a Answer, log *slog.Logger) unix.Errno {
	ifr, err := unix.NewIfreq(req.name())
	if err != nil { // a name that long was cut
		log.Error("could not open tap", "error", err)
		return unix.EINVAL
	}
	ifr.SetUint16(a.Flags)
	creds := t.credentials
	if creds.netAdmin {
		if creds.netAdmin, err = creds.userns.over(f.netns); err != nil {
			log.Error("could not open tap", "error", err)
			return unix.EPERM
		}
	}
	err = creds.do(func() error { return unix.IoctlIfreq(f.fd, unix.TUNSETIFF, ifr) })
	if err != nil {
		log.Error("could not open tap", "error", err, "hint", hint(err))
		var errno unix.Errno
		if !errors.As(err, &errno) {
			errno = unix.EIO
		}
		return errno
	}
	// The driver writes the name that it found back and leaves the flags as they came.
	copy(req[:unix.IFNAMSIZ], make([]byte, unix.IFNAMSIZ))
	copy(req[:unix.IFNAMSIZ-1], ifr.Name())
	if err := t.writeIfreq(address, req); err != nil {
		log.Error("opened tap, and its ifreq could not be written", "error", err)
		return unix.EFAULT
	}
	log.Info("opened tap")
	return 0
}

// hint explains the driver's errno (tun_set_iff and tun_attach in drivers/net/tun.c).
func hint(err error) string {
	switch {
	case errors.Is(err, unix.EBUSY):
		return "a TAP of one queue is open already, by this VMM or another"
	case errors.Is(err, unix.E2BIG):
		return "256 queues are open, the most that a TAP has"
	case errors.Is(err, unix.EPERM):
		return "the TAP's owner is another user or group; see \"owner\" and \"group\" in the configuration"
	case errors.Is(err, unix.EEXIST), errors.Is(err, unix.EINVAL):
		return "this fd has a device already, or the flags are not those of a TAP"
	}
	return ""
}
