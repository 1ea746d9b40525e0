package microvm

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// process is a child in a netns that may be another than this process's.
type process struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout io.ReadCloser
	stderr *tail
	ended  chan struct{} // closed after cmd.Wait
}

// startProcess starts a program in the netns at path (empty: the current one), with files as its descriptors from 3 on. It
// is killed when this process ends.
func startProcess(netns string, cmdline []string, files []*os.File) (*process, error) {
	path, err := exec.LookPath(cmdline[0])
	if err != nil {
		return nil, fmt.Errorf("%w; install qemu-system-x86", err)
	}
	p := &process{stderr: &tail{}, ended: make(chan struct{})}
	p.cmd = exec.Command(path, cmdline[1:]...)
	p.cmd.ExtraFiles = files
	p.cmd.Stderr = p.stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL, Setpgid: true}
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	// A pipe of our own: cmd.Wait closes StdoutPipe's before all is read.
	stdout, child, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p.cmd.Stdout, p.stdout = child, stdout
	started := make(chan error)
	go p.run(netns, started)
	err = <-started
	_ = child.Close() // the child has its own
	if err != nil {
		return nil, errors.Join(err, stdout.Close())
	}
	return p, nil
}

// run starts the child from a thread in the netns and keeps that thread until the child has ended: the kernel sends
// Pdeathsig when the thread that forked ends, not the process.
func (p *process) run(netns string, started chan<- error) {
	runtime.LockOSThread()
	back := func() error { return nil }
	if netns != "" {
		var err error
		if back, err = enter(netns); err != nil {
			started <- err
			return // without unlocking: the thread may be in the wrong netns and ends here
		}
	}
	err := p.cmd.Start()
	if err != nil {
		err = fmt.Errorf("start %s: %w", p.cmd.Path, err)
	}
	berr := back()
	if err != nil {
		started <- errors.Join(err, berr)
		return
	}
	started <- nil
	_ = p.cmd.Wait() // its state is read where it matters
	close(p.ended)
	if berr == nil {
		runtime.UnlockOSThread()
	}
}

// enter moves the calling thread into the netns at path and gives the way back.
func enter(path string) (back func() error, err error) {
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	there, err := os.Open(path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the netns: %w", err), home.Close())
	}
	err = unix.Setns(int(there.Fd()), unix.CLONE_NEWNET)
	_ = there.Close()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("enter the netns %s: %w", path, err), home.Close())
	}
	return func() error {
		defer home.Close()
		if err := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("leave the netns %s: %w", path, err)
		}
		return nil
	}, nil
}

// stop kills the child, waits for its end and closes the pipes.
func (p *process) stop() error {
	err := p.cmd.Process.Kill()
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	<-p.ended
	_ = p.stdin.Close() // nobody reads any more
	return err
}

// tail keeps the last tailSize bytes written to it.
type tail struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

const tailSize = 64 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf.Write(p)
	if over := t.buf.Len() - tailSize; over > 0 {
		t.buf.Next(over)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buf.String()
}
