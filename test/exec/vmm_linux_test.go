package exec_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// vmmArg makes the test binary a stand-in for a VMM, which obeys lines on its standard input and answers each with one:
//
//	open NAME FLAGS   open a queue: "fd N FLAGS" with the flags that the ifreq has afterwards, or "errno NAME"
//	storm NAME FLAGS N   N opens at once, each on a thread of its own: "N opened"
//	close FD          "closed"
//	time NAME FLAGS N   open and close a queue N times: "N ns" each
//	pelted NAME FLAGS N   the same under a hail of signals: "N opened"
//	run               start another stand-in, a child that takes over standard input: its answers follow
//	orphan            start another one that lives on when this one exits: its answers follow
//	catch             answer "signal NAME" to each signal from now on: "catching"
//	exit N, kill N    end: with an exit code, by a signal
const vmmArg = "stand-in-vmm"

// vmm is the stand-in. With the arguments UID and GID it gives its rights away first, as a jailer does.
func vmm(args []string) int {
	if len(args) == 2 {
		uid, _ := strconv.Atoi(args[0])
		gid, _ := strconv.Atoi(args[1])
		if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(gid), syscall.Setuid(uid)); err != nil {
			return 99
		}
	}
	fmt.Println("ready", os.Getpid())
	for in := bufio.NewReader(unbuffered{}); ; {
		line, err := in.ReadString('\n')
		if err != nil {
			return 0
		}
		f := strings.Fields(line)
		switch f[0] {
		case "open":
			fmt.Println(vmmOpen(f[1], f[2]))
		case "storm":
			fmt.Println(vmmStorm(f[1], f[2], f[3]))
		case "close":
			fd, _ := strconv.Atoi(f[1])
			fmt.Println("closed", unix.Close(fd))
		case "time":
			n, _ := strconv.Atoi(f[3])
			begin := time.Now()
			for range n {
				vmmReopen(f[1], f[2])
			}
			fmt.Println(time.Since(begin).Nanoseconds()/int64(n), "ns")
		case "pelted":
			fmt.Println(vmmPelted(f[1], f[2], f[3]))
		case "run", "orphan":
			cmd := exec.Command("/proc/self/exe", vmmArg)
			cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
			if err := cmd.Start(); err != nil {
				fmt.Println("start:", err)
				return 98
			}
			if f[0] == "orphan" {
				return 5
			}
			_ = cmd.Wait()
			return cmd.ProcessState.ExitCode()
		case "catch":
			signals := make(chan os.Signal, 16)
			signal.Notify(signals, unix.SIGHUP, unix.SIGINT, unix.SIGTERM, unix.SIGUSR1, unix.SIGWINCH, unix.SIGCONT)
			go func() {
				for s := range signals {
					fmt.Println("signal", unix.SignalName(s.(syscall.Signal)))
				}
			}()
			fmt.Println("catching")
		case "exit":
			code, _ := strconv.Atoi(f[1])
			return code
		case "kill":
			n, _ := strconv.Atoi(f[1])
			signal.Reset()
			_ = unix.Kill(os.Getpid(), syscall.Signal(n))
			select {}
		}
	}
}

// unbuffered reads standard input a byte at a time: what follows "run" is for the child.
type unbuffered struct{}

func (unbuffered) Read(b []byte) (int, error) { return os.Stdin.Read(b[:1]) }

// vmmOpen opens as Firecracker does.
func vmmOpen(name, flags string) string {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return "open " + err.Error()
	}
	n, _ := strconv.ParseUint(flags, 0, 16)
	var ifr struct {
		name  [unix.IFNAMSIZ]byte
		flags uint16
		_     [22]byte
	}
	copy(ifr.name[:], name)
	ifr.flags = uint16(n)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TUNSETIFF, uintptr(unsafe.Pointer(&ifr))); errno != 0 {
		_ = unix.Close(fd)
		return "errno " + unix.ErrnoName(errno)
	}
	status, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil || status&unix.O_NONBLOCK == 0 {
		return fmt.Sprintf("fd %d is no longer non-blocking", fd)
	}
	return fmt.Sprintf("fd %d %#x %s", fd, ifr.flags, unix.ByteSliceToString(ifr.name[:]))
}

func vmmStorm(name, flags, times string) string {
	n, _ := strconv.Atoi(times)
	answers := make([]string, n)
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() {
			runtime.LockOSThread()
			answers[i] = vmmOpen(name, flags)
		})
	}
	group.Wait()
	opened := 0
	for _, a := range answers {
		if strings.HasPrefix(a, "fd ") {
			opened++
		}
	}
	return fmt.Sprint(opened, " opened")
}

// vmmReopen opens a queue and closes it.
func vmmReopen(name, flags string) (opened bool) {
	var fd int
	if _, err := fmt.Sscanf(vmmOpen(name, flags), "fd %d", &fd); err != nil {
		return false
	}
	return unix.Close(fd) == nil
}

// vmmPelted opens and closes on a thread that gets a signal every few microseconds.
func vmmPelted(name, flags, times string) string {
	n, _ := strconv.Atoi(times)
	signal.Notify(make(chan os.Signal, 1), unix.SIGUSR2) // restarts system calls, as all of Go's handlers
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	tid, done := unix.Gettid(), make(chan struct{})
	go func() {
		for {
			select {
			case <-done:
				return
			default:
				_ = unix.Tgkill(os.Getpid(), tid, unix.SIGUSR2)
				time.Sleep(20 * time.Microsecond)
			}
		}
	}()
	opened := 0
	for range n {
		if vmmReopen(name, flags) {
			opened++
		}
	}
	close(done)
	return fmt.Sprint(opened, " opened")
}
