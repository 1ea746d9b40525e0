package client_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/agent/client"
	"golang.org/x/sys/unix"
)

// A part is one message of a daemon that is being played.
type part struct {
	text string
	fds  int
}

// play answers each connection with the next of these answers, and gives the socket.
func play(t *testing.T, answers ...[]part) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "socket")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	t.Cleanup(func() {
		_ = l.Close()
		<-ended
		_ = null.Close()
	})
	go func() {
		defer close(ended)
		for _, parts := range answers {
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			_, _ = bufio.NewReader(conn).ReadBytes('\n')
			for _, p := range parts {
				var oob []byte
				if p.fds > 0 {
					fds := make([]int, p.fds)
					for i := range fds {
						fds[i] = int(null.Fd())
					}
					oob = unix.UnixRights(fds...)
				}
				_, _, _ = conn.WriteMsgUnix([]byte(p.text), oob, nil)
			}
			_ = conn.Close()
		}
	}()
	return path
}

func openFDs(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

const two = `{"version":1,"queues":2}` + "\n"

// An answer that is cut short, or is none, leaves no descriptor.
func TestBadAnswersLeaveNothingOpen(t *testing.T) {
	for _, tt := range []struct {
		name  string
		parts []part
		want  string
	}{
		{"nothing", nil, "ended after 0 bytes and 0 descriptors"},
		{"half a line", []part{{`{"version":1,`, 2}}, "ended after 13 bytes and 2 descriptors"},
		{"too few descriptors", []part{{two, 1}}, "ended after 25 bytes and 1 descriptors"},
		{"too many descriptors", []part{{two, 3}}, "want 2 descriptors, got 3"},
		{"descriptors with a refusal", []part{{`{"version":1,"error":{"code":"internal","message":"oh"}}` + "\n", 1}}, "tapird: oh (internal)"},
		{"another version", []part{{`{"version":2,"queues":2}` + "\n", 2}}, "want version 1, got 2"},
		{"no queues", []part{{`{"version":1}` + "\n", 1}}, "want 1 queue or more, got 0"},
		{"no JSON", []part{{"hello\n", 1}}, "invalid character"},
		{"no end", []part{{strings.Repeat(" ", client.MaxAnswer+1), 1}}, "want at most 16384 bytes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			socket := play(t, tt.parts)
			before := openFDs(t)
			_, err := client.Client{Socket: socket}.Queues(t.Context(), client.Request{ContainerID: "c", IfName: "eth0"})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("want %q, got %v", tt.want, err)
			}
			for until := time.Now().Add(5 * time.Second); openFDs(t) != before; time.Sleep(time.Millisecond) {
				if time.Now().After(until) { // the other end of the connection is this process's too
					t.Fatalf("%d descriptors are open, %d were", openFDs(t), before)
				}
			}
		})
	}
}

// A line in pieces, and descriptors in two messages, are put together; an answer that was cut short is asked for again.
func TestPiecesAndRetry(t *testing.T) {
	pieces := []part{{two[:10], 1}, {two[10:], 0}, {"\n", 1}}
	q, err := client.Client{Socket: play(t, []part{{two, 1}}, nil, pieces), Wait: 5 * time.Second}.Queues(t.Context(), client.Request{})
	if err != nil {
		t.Fatal(err)
	}
	if len(q.FDs) != 2 {
		t.Errorf("want 2 descriptors, got %v", q.FDs)
	}
	for _, fd := range q.FDs {
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("descriptor %d: want close-on-exec, got %#x, %v", fd, flags, err)
		}
	}
	if err := q.Close(); err != nil {
		t.Error(err)
	}
}

// Whoever listens cannot have any file of the asker's.
func TestOnlyTokensAreRead(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	refusal := `{"version":1,"error":{"code":"token-required","message":"token","tokenFile":"` + secret + `"}}` + "\n"
	_, err := client.Client{Socket: play(t, []part{{refusal, 0}}, []part{{two, 2}})}.Queues(t.Context(), client.Request{})
	if err == nil || !strings.Contains(err.Error(), `want one in a folder "tokens"`) {
		t.Errorf("want a refusal to read %s, got %v", secret, err)
	}
}

// A daemon that says nothing is waited for until the context ends.
func TestContextEndsTheWait(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := (client.Client{Socket: path}).Queues(ctx, client.Request{}); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, io.EOF) {
		t.Errorf("want the deadline, got %v", err)
	}
}
