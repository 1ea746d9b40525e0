package quickstart

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tapir-cni/tapir/internal/microvm"
)

// stage is what the outer process hands to the inner one.
type stage struct {
	Image microvm.Image
	// BinDir is found by the outer process: the inner one is started by /proc/self/exe, a file of the machine's mount
	// namespace, whose path means nothing in its own.
	BinDir string
	Accel  microvm.Accel
	Why    string // of the accelerator
	Start  time.Time
}

// grace is how long the inner process may take to clean up after itself when it is asked to end.
const grace = 20 * time.Second

func runOuter(ctx context.Context, o Options) error {
	p := progress{o.progressWriter(), time.Now()}
	if unix.Geteuid() != 0 {
		return errors.New("the quick start makes namespaces and devices, which only root can; run it with sudo")
	}
	if runtime.GOARCH != "amd64" {
		return fmt.Errorf("the quick start boots x86-64 guests, whose kernel this machine's archive does not carry; run it on amd64, not %s", runtime.GOARCH)
	}
	if err := findCommands(o.BinDir); err != nil {
		return err
	}
	if err := installMissing(ctx, p); err != nil {
		return interrupted(ctx, err)
	}
	s := stage{Start: p.start, BinDir: o.BinDir}
	var err error
	s.Image, err = microvm.EnsureImage(ctx, microvm.ImageOptions{
		CacheDir: o.CacheDir, Kernel: o.Kernel, Agent: o.BinDir + "/tapir-guest",
	}, func(step string) { p.say("%s", step) })
	if err != nil {
		return interrupted(ctx, err)
	}
	if s.Accel, s.Why, err = microvm.ChooseAccel(ctx, s.Image, o.CacheDir); err != nil {
		return interrupted(ctx, err)
	}
	p.say("guests: kernel %s, accelerator %s (%s)", s.Image.Release, s.Accel, s.Why)

	if ctx.Err() != nil {
		return ErrInterrupted
	}
	before, err := outsideSnapshot()
	if err != nil {
		return err
	}
	report, pidns, runErr := startInner(ctx, o, s)
	if pidns != nil {
		defer pidns.Close()
	}
	left, err := outsideLeftovers(before, pidns)
	if err != nil {
		return errors.Join(runErr, err)
	}
	if len(left) == 0 {
		p.say("the machine outside is as it was: links, addresses, routes, nft tables, bpffs, net sysctls, mounts, /run/netns, " +
			"/run/tapir, processes")
	}
	if o.JSON && report != nil {
		report.LeftOutside = append(report.LeftOutside, left...)
		report.Elapsed = time.Since(p.start)
		if err := printJSON(o.Out, report); err != nil {
			return err
		}
	}
	if len(left) > 0 {
		return errors.Join(runErr, fmt.Errorf("the machine outside is not as it was:\n\t%s", strings.Join(left, "\n\t")))
	}
	if runErr == nil {
		p.say("done")
	}
	return runErr
}

// startInner runs this program again as process 1 of a new node and gives its report and its pid namespace, held open so
// that no other can be taken for it.
func startInner(ctx context.Context, o Options, s stage) (report *Report, pidns *os.File, err error) {
	// The kernel sends Pdeathsig when the thread that forked ends, not the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	handed, err := json.Marshal(s)
	if err != nil {
		return nil, nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer r.Close()
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), stageEnv+"="+string(handed))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, o.Out, o.Err
	cmd.ExtraFiles = []*os.File{w}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID,
		Pdeathsig:  unix.SIGKILL,
	}
	err = cmd.Start()
	_ = w.Close() // the inner process has its own
	if err != nil {
		return nil, nil, fmt.Errorf("make the node's namespaces: %w", err)
	}
	pidns, err = os.Open(fmt.Sprintf("/proc/%d/ns/pid", cmd.Process.Pid))
	if err != nil {
		return nil, nil, errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	done := make(chan struct{})
	go endWith(ctx, cmd.Process, done)
	text, readErr := io.ReadAll(r)
	err = cmd.Wait()
	close(done)
	if err == nil {
		err = readErr
	}
	if len(text) > 0 {
		report = &Report{}
		if jerr := json.Unmarshal(text, report); jerr != nil {
			return nil, pidns, errors.Join(err, fmt.Errorf("read the node's report: %w", jerr))
		}
	}
	return report, pidns, innerError(ctx, report, err)
}

// endWith asks the inner process to end when ctx is done, and makes it when it takes too long. It asks again and again: the
// kernel drops a signal for a process 1 that has no handler yet.
func endWith(ctx context.Context, p *os.Process, done <-chan struct{}) {
	select {
	case <-done:
		return
	case <-ctx.Done():
	}
	for deadline := time.Now().Add(grace); time.Now().Before(deadline); {
		_ = p.Signal(unix.SIGTERM) // it may have just ended
		select {
		case <-done:
			return
		case <-time.After(200 * time.Millisecond):
		}
	}
	_ = p.Kill()
}

// innerError is why the node's process ended: by its own report, or for lack of one by how it ended.
func innerError(ctx context.Context, report *Report, err error) error {
	switch {
	case report != nil && report.Interrupted && report.Error == ErrInterrupted.Error():
		return ErrInterrupted
	case report != nil && report.Error != "":
		return errors.New(report.Error)
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("%w; the node's process was ended: %w", ErrInterrupted, err)
	case err != nil:
		return fmt.Errorf("the node's process: %w", err)
	}
	return nil
}

// interrupted makes an error that only says that ctx was cancelled the one that people understand.
func interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ErrInterrupted
	}
	return err
}
