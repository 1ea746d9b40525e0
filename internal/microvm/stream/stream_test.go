package stream

import (
	"bytes"
	"encoding/binary"
	"net"
	"strings"
	"testing"
)

// pair gives both ends of a TCP connection whose server runs Serve, behind a pipe that change may alter.
func pair(t *testing.T, change func(toServer bool, at int64, p []byte)) net.Conn {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- Serve(l) }()
	client, middle := net.Pipe()
	server, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	go relay(server, middle, func(at int64, p []byte) { change(true, at, p) })
	go relay(middle, server, func(at int64, p []byte) { change(false, at, p) })
	t.Cleanup(func() {
		client.Close()
		l.Close()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return client
}

func relay(to, from net.Conn, change func(at int64, p []byte)) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 1<<16)
	for at := int64(0); ; {
		n, err := from.Read(buf)
		change(at, buf[:n])
		at += int64(n)
		if _, werr := to.Write(buf[:n]); err != nil || werr != nil {
			return
		}
	}
}

func TestTransferBothWays(t *testing.T) {
	const n = 3*blockSize + 12345
	for name, f := range map[string]func(net.Conn, uint64, int64) (Result, error){"upload": Upload, "download": Download} {
		r, err := f(pair(t, func(bool, int64, []byte) {}), 42, n)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := r.Err(n); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !strings.HasPrefix(r.Peer, "127.0.0.1:") {
			t.Errorf("%s: want the client's address as peer, got %q", name, r.Peer)
		}
	}
}

func TestOneFlippedBitIsFoundAtItsOffset(t *testing.T) {
	const n, wrong = 2 * blockSize, blockSize + 4097
	flip := func(offset int64) func(int64, []byte) {
		return func(at int64, p []byte) {
			if i := offset - at; i >= 0 && i < int64(len(p)) {
				p[i] ^= 4
			}
		}
	}
	for _, tt := range []struct {
		name   string
		f      func(net.Conn, uint64, int64) (Result, error)
		change func(bool, int64, []byte)
	}{
		{"upload", Upload, func(toServer bool, at int64, p []byte) {
			if toServer {
				flip(int64(requestLen)+wrong)(at, p)
			}
		}},
		{"download", Download, func(toServer bool, at int64, p []byte) {
			if !toServer {
				flip(wrong)(at, p)
			}
		}},
	} {
		r, err := tt.f(pair(t, tt.change), 7, n)
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		if r.Mismatch != wrong || r.Sent == r.Received || r.Err(n) == nil {
			t.Errorf("%s: want mismatch at %d and different hashes, got %+v", tt.name, wrong, r)
		}
	}
}

func TestBlocksDiffer(t *testing.T) {
	s := newSource(1)
	first := bytes.Clone(s.next(blockSize))
	second := bytes.Clone(s.next(blockSize))
	for i := 0; i < blockSize; i += 8 {
		if binary.LittleEndian.Uint64(first[i:]) == binary.LittleEndian.Uint64(second[i:]) {
			t.Fatalf("blocks 0 and 1 share the word at %d", i)
		}
	}
	if at := newSource(1).compare(append(first[8:], second...)); at != 0 {
		t.Errorf("a stream that lost eight bytes: want mismatch at 0, got %d", at)
	}
}
