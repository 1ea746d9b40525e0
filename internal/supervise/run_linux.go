package supervise

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// forwarded are the signals that the program gets when the supervisor does. Those of job control act on both, since both
// are in one process group.
var forwarded = []os.Signal{
	unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM, unix.SIGCONT, unix.SIGWINCH,
}

// Run starts argv under a supervisor, passes signals on to it, and gives the status with which it ended. It returns when
// in addition no process that it started and that inherited the filter is left. Errors: a *[StartError] where the
// program did not start; the system's.
//
// It waits for every child of the process and makes it a subreaper: the process must do nothing else.
func Run(c Config, argv []string) (syscall.WaitStatus, error) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 0, fmt.Errorf("become a subreaper: %w", err)
	}
	// The kernel sends a child's parent-death signal when the thread that forked it ends, and opens end threads.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	signals, ended := watch()
	p, err := start(c, argv)
	if err != nil {
		return 0, err
	}
	served := make(chan error, 1)
	go func() {
		err := serve(p.listener, c)
		// Closed, it lets what runs on get ENOSYS instead of waiting for an answer that will not come.
		_ = unix.Close(int(p.listener))
		served <- err
	}()
	if err := p.release(); err != nil {
		_ = unix.Kill(p.pid, unix.SIGKILL)
		p.wait()
		return 0, err
	}
	serving := true
	for serving || !p.ended {
		select {
		case s := <-signals:
			p.forward(s.(syscall.Signal))
		case err := <-served:
			serving = false
			if err != nil {
				c.Logger.Error("supervision ended", "error", err)
			}
		case <-ended:
			before := p.ended
			p.reap()
			if p.ended && !before && serving {
				c.Logger.Debug("the VMM ended; what it started and left is still supervised", "pid", p.pid)
			}
		}
	}
	return p.status, nil
}

// watch catches the signals to forward, but for those that were ignored when the process began, and SIGCHLD.
func watch() (signals, ended chan os.Signal) {
	signals = make(chan os.Signal, 64)
	for _, s := range forwarded {
		if !signal.Ignored(s) {
			signal.Notify(signals, s)
		}
	}
	ended = make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	return signals, ended
}

// program is the started program.
type program struct {
	pid      int
	socket   int
	listener listener
	ended    bool
	status   syscall.WaitStatus
}

// start runs [Child] and receives its listener. The child then waits for release.
func start(c Config, argv []string) (*program, error) {
	// Sequenced packets: one message a call, and an end-of-file.
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make a socket pair: %w", err)
	}
	// Inherited under the number it has: fds that the caller meant for the VMM keep theirs.
	_, err = unix.FcntlInt(uintptr(pair[1]), unix.F_SETFD, 0)
	p := &program{socket: pair[0], listener: -1}
	if err == nil {
		args := append([]string{os.Args[0]}, c.ChildArgs...)
		args = append(append(args, strconv.Itoa(pair[1])), argv...)
		p.pid, err = syscall.ForkExec("/proc/self/exe", args, &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}})
	}
	_ = unix.Close(pair[1])
	if err != nil {
		_ = unix.Close(p.socket)
		return nil, fmt.Errorf("start %s anew: %w", os.Args[0], err)
	}
	if err := p.receiveListener(); err != nil {
		_ = unix.Close(p.socket)
		p.wait()
		return nil, err
	}
	return p, nil
}

func (p *program) receiveListener() error {
	data, rights := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
	n, rn, _, _, err := recvmsg(p.socket, data, rights)
	if err != nil {
		return fmt.Errorf("receive the listener: %w", err)
	}
	if n == 0 || data[0] != messageListener {
		return startError(data[:n])
	}
	messages, err := unix.ParseSocketControlMessage(rights[:rn])
	if err != nil || len(messages) != 1 {
		return fmt.Errorf("receive the listener: want one message with an fd, got %d (%w)", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return fmt.Errorf("receive the listener: want one fd, got %d (%w)", len(fds), err)
	}
	p.listener = listener(fds[0])
	return nil
}

func recvmsg(fd int, data, rights []byte) (n, rn, flags int, from unix.Sockaddr, err error) {
	for {
		n, rn, flags, from, err = unix.Recvmsg(fd, data, rights, unix.MSG_CMSG_CLOEXEC)
		if !errors.Is(err, unix.EINTR) {
			return n, rn, flags, from, err
		}
	}
}

// startError reads why the child did not become the program.
func startError(message []byte) error {
	if len(message) < 2 || message[0] != messageFailed {
		return &StartError{Code: exitFailed, text: "start the VMM: its process ended before"}
	}
	return &StartError{Code: int(message[1]), text: string(message[2:])}
}

// release lets the child become the program and returns when it has.
func (p *program) release() error {
	defer unix.Close(p.socket)
	if err := unix.Send(p.socket, []byte{messageServed}, unix.MSG_NOSIGNAL); err != nil {
		return fmt.Errorf("release the VMM: %w", err)
	}
	data := make([]byte, 4096)
	n, _, _, _, err := recvmsg(p.socket, data, nil)
	if err != nil {
		return fmt.Errorf("release the VMM: %w", err)
	}
	if n > 0 {
		return startError(data[:n])
	}
	return nil
}

// wait waits for the program itself.
func (p *program) wait() {
	for {
		_, err := syscall.Wait4(p.pid, &p.status, 0, nil)
		if !errors.Is(err, unix.EINTR) {
			p.ended = true
			return
		}
	}
}

// reap takes note of every child that has ended: the program, and orphans of its own.
func (p *program) reap() {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, unix.WNOHANG, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || pid == 0 {
			return
		}
		if pid == p.pid {
			p.ended, p.status = true, status
		}
	}
}
