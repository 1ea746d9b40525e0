package xdp

import (
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/tapir-cni/tapir/internal/testnode"
)

// What a 60-byte frame costs its writer, and how many come out: by the shortcut, by the default path, and where XDP drops it.
//
//	go test ./xdp -run - -bench Shortcut
func BenchmarkShortcut(b *testing.B) {
	b.Run("shortcut", func(b *testing.B) { benchPair(b, ModeNative, false) })
	b.Run("default", func(b *testing.B) { benchPair(b, ModeOff, false) })
	b.Run("drop", func(b *testing.B) { benchPair(b, ModeOff, true) })
}

func benchPair(b *testing.B, mode Mode, drop bool) {
	nd := newNode(b, 2, mode)
	from, to := nd.guests[0], nd.guests[1]
	if drop {
		attachDrop(b, from)
	}
	frame := join(vnetHdr{}.bytes(), pad(from.to(to.v4, protoUDP, udp(from.v4, to.v4, 1000, 2000, make([]byte, 18))), 60))
	var delivered atomic.Int64
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		sink(to.tap.fd, &delivered, stop)
	}()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	start := time.Now()
	for b.Loop() {
		_, _, _ = syscall.RawSyscall(unix.SYS_WRITE, uintptr(from.tap.fd), uintptr(unsafe.Pointer(&frame[0])), uintptr(len(frame)))
	}
	elapsed := time.Since(start)
	time.Sleep(20 * time.Millisecond)
	close(stop)
	<-done
	b.ReportMetric(float64(delivered.Load())/elapsed.Seconds()/1e6, "Mpps")
}

// sink reads frames until stop.
func sink(fd int, n *atomic.Int64, stop chan struct{}) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	buf := make([]byte, 4096)
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		_, _, errno := syscall.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)))
		if errno == 0 {
			n.Add(1)
			continue
		}
		select {
		case <-stop:
			return
		default:
			_, _ = unix.Poll(poll, 10)
		}
	}
}

func attachDrop(b *testing.B, g *guest) {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "drop", Type: ebpf.XDP, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, xdpDrop), asm.Return()},
	})
	if err != nil {
		b.Fatal(err)
	}
	defer prog.Close()
	testnode.In(b, g.ns, func() {
		if err := writeHook(int(g.tapIdx), prog.FD(), xdpDrvMode, nil); err != nil {
			b.Fatal(err)
		}
	})
}

// What guest_xdp itself costs for a frame that it takes, by test runs: the least of many, so that it can be compared on a
// machine that does other things. Both guests have the gateway's MAC, so that a frame comes out as it went in, but for its TTL.
func BenchmarkShortcutProgram(b *testing.B) {
	s := newShortcutPrograms(b, true)
	from, to := guestParticipant(), peerParticipant()
	from.MAC, to.MAC = GatewayMAC, GatewayMAC
	join2(b, s, from)
	join2(b, s, to)
	standIn(b, s, shortcutMapDevices, peerTAP)
	src, dst := guest4.Addr(), peer4
	const ttl = 255
	full := eth(GatewayMAC, GatewayMAC, typeIPv4, ip4(src, dst, protoUDP, 0, udp(src, dst, 1000, 2000, make([]byte, 18))))
	full[22] = ttl
	short := with(full, 22, ttl)
	copy(short[24:], []byte{0, 0})
	copy(short[24:], checksum(short[14:34]))
	least := time.Hour
	for b.Loop() {
		opts := ebpf.RunOptions{Data: short, DataOut: make([]byte, len(short)+256), Repeat: ttl - 2}
		var took time.Duration
		ret, err := s.programs[shortcutProgGuestXdp].Run(&opts)
		if err != nil || ret != xdpRedirect {
			b.Fatal(ret, err)
		}
		_, took, err = s.programs[shortcutProgGuestXdp].Benchmark(short, ttl-2, nil)
		if err != nil {
			b.Fatal(err)
		}
		least = min(least, took)
	}
	b.ReportMetric(float64(least.Nanoseconds()), "ns/frame")
}
