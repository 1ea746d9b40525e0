package debianvm

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

const qemuBinary = "qemu-system-x86_64"

// ExitError says that a job ran and ended with another status than 0.
type ExitError struct {
	Status  int
	console string
}

func (e *ExitError) Error() string {
	return fmt.Sprintf("exit status %d%s", e.Status, e.console)
}

// Run boots a guest, runs the job and takes the guest away. Its error is an *[ExitError] where the program ended with another
// status than 0.
func (img Image) Run(ctx context.Context, j Job) error {
	if err := j.defaults(); err != nil {
		return err
	}
	disk, err := memoryFile("job")
	if err != nil {
		return err
	}
	defer disk.Close()
	if err := j.write(disk); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, j.Timeout, fmt.Errorf("no end after %s", j.Timeout))
	defer cancel()
	console := &console{log: j.Log}
	status, err := img.boot(ctx, j, disk, console)
	if err != nil {
		return fmt.Errorf("guest with %s: %w%s", img.Release, explain(ctx, err), console.end())
	}
	if status != 0 {
		return &ExitError{Status: status, console: console.end()}
	}
	return nil
}

// boot runs QEMU until the job's exit status has come.
func (img Image) boot(ctx context.Context, j Job, disk *os.File, c *console) (status int, err error) {
	// The kernel sends Pdeathsig when the thread that forked ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	output, outputW, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer output.Close()
	lines, linesW, err := os.Pipe()
	if err != nil {
		return 0, errors.Join(err, outputW.Close())
	}
	defer lines.Close()
	cmd := command(ctx, qemuBinary, img.qemuArgs(j)...)
	cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
	cmd.ExtraFiles = []*os.File{disk, outputW}
	cmd.Stdout, cmd.Stderr = linesW, linesW
	err = cmd.Start()
	err = errors.Join(err, outputW.Close(), linesW.Close())
	if errors.Is(err, exec.ErrNotFound) {
		return 0, fmt.Errorf("%w; install qemu-system-x86", err)
	}
	if err != nil {
		return 0, err
	}
	var reader sync.WaitGroup
	reader.Go(func() { c.read(lines) })
	status, err = copyOutput(j.Stdout, output)
	// The guest switches itself off, which takes a second that nobody needs to wait for.
	_ = cmd.Cancel()
	werr := cmd.Wait()
	reader.Wait()
	if err != nil && cmd.ProcessState.Exited() && werr != nil {
		err = fmt.Errorf("%s: %w", qemuBinary, werr)
	}
	return status, err
}

// qemuArgs speak of the job's disk as descriptor 3 and of its output as descriptor 4.
func (img Image) qemuArgs(j Job) []string {
	args := []string{
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-machine", "q35",
		"-cpu", cpu, "-smp", strconv.Itoa(j.CPUs), "-m", strconv.Itoa(j.MemoryMB),
		"-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console",
		"-chardev", "file,id=output,path=/proc/self/fd/4", "-serial", "chardev:output",
		"-kernel", img.Kernel, "-initrd", img.Initrd,
		"-append", "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off random.trust_cpu=on",
	}
	if j.CountInstructions {
		args = append(args, "-accel", "tcg,thread=single", "-icount", "shift=0,align=off,sleep=off")
	} else {
		args = append(args, "-accel", "tcg,thread=multi")
	}
	for i, file := range []string{img.Root, img.Modules, "/proc/self/fd/3"} {
		id := "disk" + strconv.Itoa(i)
		args = append(args, "-drive", "if=none,format=raw,readonly=on,id="+id+",file="+file, "-device", "virtio-blk-pci,drive="+id)
	}
	return args
}

// cpu is all that TCG can emulate, less what makes copying wrongly dear: a kernel that sees these two flags copies by "rep movsb",
// which real processors do by the cache line and TCG does byte by byte, in some 20 times of what the kernel's loop takes.
const cpu = "max,-erms,-fsrm"

// console takes what the guest's kernel, the job's standard error and QEMU say.
type console struct {
	log func(string)

	mu    sync.Mutex
	lines []string
}

const consoleKept = 20

func (c *console) read(f *os.File) {
	in := bufio.NewScanner(f)
	for in.Scan() {
		line := strings.TrimRight(in.Text(), "\r")
		if line == "" {
			continue
		}
		c.mu.Lock()
		c.lines = append(c.lines, line)
		c.lines = c.lines[max(0, len(c.lines)-consoleKept):]
		c.mu.Unlock()
		c.log(line)
	}
}

// end is what an error says of the console.
func (c *console) end() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.lines) == 0 {
		return ""
	}
	return "; its console ends\n\t" + strings.Join(c.lines, "\n\t")
}

func memoryFile(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create a file in memory: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}
