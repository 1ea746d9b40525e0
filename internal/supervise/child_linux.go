package supervise

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Exit codes of a program that could not be started, as shells and env(1) have them.
const (
	exitFailed        = 1
	exitNotExecutable = 126
	exitNotFound      = 127
)

// StartError says that the program could not be started. Code is what a shell would exit with: 127 where there is no such
// program, 126 where it is not executable, else 1.
type StartError struct {
	Code int
	text string
}

func (e *StartError) Error() string { return e.text }

// What goes over the socket between [Run] and [Child], one message each: the listener, with the fd; the
// answer, that it is served; and, in place of end-of-file, why the program did not start, after its exit code.
const (
	messageListener = 'L'
	messageServed   = 'S'
	messageFailed   = 'E'
)

// Child is what [Run] starts: it puts the filter on itself and becomes the program. args are the socket's number, the
// program and its arguments. It returns only where that failed, when it has told the parent.
func Child(args []string) {
	socket, err := strconv.Atoi(args[0])
	if err != nil {
		return
	}
	unix.CloseOnExec(socket)
	// What the command caught before is the program's own matter again; what was ignored stays so.
	signal.Reset()
	code, err := become(socket, args[1:])
	if err == nil {
		return
	}
	// A parent that is gone hears nothing, and nobody else is to.
	_ = unix.Send(socket, append([]byte{messageFailed, byte(code)}, err.Error()...), unix.MSG_NOSIGNAL)
}

func become(socket int, argv []string) (code int, err error) {
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return startCode(err), fmt.Errorf("start %q: %w", argv[0], lookReason(err))
	}
	runtime.LockOSThread() // the filter is this thread's, and it is this thread that becomes the program
	l, err := installFilter()
	if err != nil {
		return exitFailed, err
	}
	if err := unix.Sendmsg(socket, []byte{messageListener}, unix.UnixRights(l), nil, unix.MSG_NOSIGNAL); err != nil {
		return exitFailed, fmt.Errorf("hand the listener over: %w", err)
	}
	if err := unix.Close(l); err != nil {
		return exitFailed, err
	}
	answer := make([]byte, 1)
	if n, _, err := unix.Recvfrom(socket, answer, 0); err != nil || n != 1 || answer[0] != messageServed {
		return exitFailed, errors.New("the supervisor has ended")
	}
	err = syscall.Exec(path, argv, os.Environ())
	return startCode(err), fmt.Errorf("start %q: %w", path, err)
}

func startCode(err error) int {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return exitNotFound
	}
	return exitNotExecutable
}

// lookReason is the error without the program's name, which is said already.
func lookReason(err error) error {
	if look, ok := errors.AsType[*exec.Error](err); ok {
		return look.Err
	}
	return err
}
