package supervise

import (
	"os"
	"runtime"
	"slices"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// run is what the kernel does with a filter, as far as this one goes.
func run(t *testing.T, program []unix.SockFilter, nr, arch uint32, command uint64) uint32 {
	t.Helper()
	var a uint32
	for pc := 0; pc < len(program); pc++ {
		switch op := program[pc]; op.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			a = map[uint32]uint32{0: nr, 4: arch, 24: uint32(command), 28: uint32(command >> 32)}[op.K]
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			if a == op.K {
				pc += int(op.Jt)
			} else {
				pc += int(op.Jf)
			}
		case unix.BPF_RET | unix.BPF_K:
			return op.K
		default:
			t.Fatalf("instruction %d has code %#x", pc, op.Code)
		}
	}
	t.Fatal("the filter has no end")
	return 0
}

func TestFilterTakesOneCall(t *testing.T) {
	const x32 = 0x40000000
	own := auditArch[runtime.GOARCH]
	program := filter(own)
	for _, tt := range []struct {
		name    string
		nr      uint32
		arch    uint32
		command uint64
		want    uint32
	}{
		{"TUNSETIFF", unix.SYS_IOCTL, own, unix.TUNSETIFF, unix.SECCOMP_RET_USER_NOTIF},
		{"TUNSETIFF below rubbish that the kernel ignores", unix.SYS_IOCTL, own, 0xdead<<32 | unix.TUNSETIFF, unix.SECCOMP_RET_USER_NOTIF},
		{"TUNGETIFF", unix.SYS_IOCTL, own, unix.TUNGETIFF, unix.SECCOMP_RET_ALLOW},
		{"TUNSETIFF in the high half", unix.SYS_IOCTL, own, unix.TUNSETIFF << 32, unix.SECCOMP_RET_ALLOW},
		{"another call with that argument", unix.SYS_FCNTL, own, unix.TUNSETIFF, unix.SECCOMP_RET_ALLOW},
		{"x32", unix.SYS_IOCTL | x32, own, unix.TUNSETIFF, unix.SECCOMP_RET_ALLOW},
		{"i386, where the number is another call", unix.SYS_IOCTL, unix.AUDIT_ARCH_I386, unix.TUNSETIFF, unix.SECCOMP_RET_ALLOW},
	} {
		if got := run(t, program, tt.nr, tt.arch, tt.command); got != tt.want {
			t.Errorf("%s: %#x, want %#x", tt.name, got, tt.want)
		}
	}
}

// slice is how many calls are timed at once: few enough that most slices meet no other process.
const slice = 2000

// BenchmarkSyscall gives the time of a system call on a thread without the filter and on one with it, in turn, each as the
// least and the median of all rounds. Run it with -benchtime=2000x.
func BenchmarkSyscall(b *testing.B) {
	null, err := os.Open("/dev/null")
	if err != nil {
		b.Fatal(err)
	}
	defer null.Close()
	fd, buf := null.Fd(), make([]byte, 1)
	for name, args := range map[string][4]uintptr{
		"getppid": {unix.SYS_GETPPID},
		"ioctl":   {unix.SYS_IOCTL, fd, unix.TUNGETIFF},
		"read":    {unix.SYS_READ, fd, uintptr(unsafe.Pointer(&buf[0])), 1},
	} {
		b.Run(name, func(b *testing.B) {
			alone, filtered := newTimer(b, false), newTimer(b, true)
			for b.Loop() {
				alone.round(args)
				filtered.round(args)
			}
			alone.report(b, "alone")
			filtered.report(b, "filtered")
			b.ReportMetric(0, "ns/op") // of a round: says nothing
		})
	}
}

// timer is a thread that times system calls.
type timer struct {
	asked chan [4]uintptr
	took  chan time.Duration
	all   []time.Duration
}

func newTimer(b *testing.B, filtered bool) *timer {
	w := &timer{asked: make(chan [4]uintptr), took: make(chan time.Duration)}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the filter ends with the thread
		if filtered {
			l, err := installFilter()
			if err != nil {
				ready <- err
				return
			}
			defer unix.Close(l)
		}
		ready <- nil
		for args := range w.asked {
			begin := time.Now()
			for range slice {
				_, _, _ = unix.RawSyscall(args[0], args[1], args[2], args[3])
			}
			w.took <- time.Since(begin)
		}
	}()
	if err := <-ready; err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { close(w.asked) })
	return w
}

func (w *timer) round(args [4]uintptr) {
	w.asked <- args
	w.all = append(w.all, <-w.took)
}

func (w *timer) report(b *testing.B, name string) {
	slices.Sort(w.all)
	b.ReportMetric(float64(w.all[0].Nanoseconds())/slice, "ns-"+name+"-least")
	b.ReportMetric(float64(w.all[len(w.all)/2].Nanoseconds())/slice, "ns-"+name+"-median")
}
