package main

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func TestStructsAreTheKernels(t *testing.T) {
	for name, size := range map[string][2]uintptr{
		"sqe": {unsafe.Sizeof(sqe{}), 64}, "cqe": {unsafe.Sizeof(cqe{}), 16}, "params": {unsafe.Sizeof(params{}), 120},
	} {
		if size[0] != size[1] {
			t.Errorf("%s: want %d bytes, got %d", name, size[1], size[0])
		}
	}
}

// Messages through a socket pair, more than the ring has room for at once, come in order and whole, each way of the ring's.
func TestRingMovesEachMessage(t *testing.T) {
	for _, m := range []method{{name: "plain", batch: 8}, {name: "fixed", batch: 8, fixed: true}, {name: "sqpoll", batch: 8, sqpoll: true}} {
		t.Run(m.name, func(t *testing.T) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(pair[0])
			defer unix.Close(pair[1])
			w := newBatcher(t, pair[0], m, true)
			defer closed(t, w)
			m.sqpoll = false // what it reads must be there when it looks
			r := newBatcher(t, pair[1], m, false)
			defer closed(t, r)
			for round := range 5 {
				var want [][]byte
				for i := range m.batch {
					b := w.buffers[(w.next+i)%len(w.buffers)]
					copy(b, fmt.Sprintf("message %02d of round %02d", i, round))
					want = append(want, b)
				}
				n, err := w.move()
				rest, err2 := w.finish()
				if err := errors.Join(err, err2); err != nil || n+rest != m.batch {
					t.Fatalf("round %d: want %d written, got %d, %v", round, m.batch, n+rest, err)
				}
				if n, err := r.move(); err != nil || n != m.batch {
					t.Fatalf("round %d: %d read, %v", round, n, err)
				}
				for i, b := range r.buffers {
					if !bytes.Equal(b, want[i]) {
						t.Errorf("round %d: want %q, got %q", round, want[i], b)
					}
				}
			}
		})
	}
}

func newBatcher(t *testing.T, fd int, m method, write bool) *batcher {
	t.Helper()
	b, err := openBatcher(fd, m, write, 64)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		t.Skipf("no io_uring here: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func closed(t *testing.T, b *batcher) {
	t.Helper()
	if err := b.close(); err != nil {
		t.Error(err)
	}
}
