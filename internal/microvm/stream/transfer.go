package stream

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// Port is where guests and node serve transfers.
const Port = 7007

// Result is what one transfer showed.
type Result struct {
	Bytes    int64         `json:"bytes"`    // that arrived
	Sent     uint64        `json:"sent"`     // XXH64 of what the sender sent
	Received uint64        `json:"received"` // XXH64 of what the receiver got
	Mismatch int64         `json:"mismatch"` // offset of the first wrong byte, -1 for none
	Elapsed  time.Duration `json:"elapsed"`  // from the request to the verdict, in nanoseconds
	Peer     string        `json:"peer"`     // the client's address and port as the server saw them
}

// Err says what was wrong with the bytes; nil where all n arrived as they were sent.
func (r Result) Err(n int64) error {
	switch {
	case r.Bytes != n:
		return fmt.Errorf("transfer: want %d bytes, got %d", n, r.Bytes)
	case r.Mismatch >= 0:
		return fmt.Errorf("transfer: byte %d of %d is not what was sent", r.Mismatch, n)
	case r.Sent != r.Received:
		return fmt.Errorf("transfer: sent hash %016x, received %016x", r.Sent, r.Received)
	}
	return nil
}

// Mbps is the transfer's rate in 10^6 bits a second.
func (r Result) Mbps() float64 {
	if r.Elapsed <= 0 {
		return 0
	}
	return float64(r.Bytes) * 8 / r.Elapsed.Seconds() / 1e6
}

// The request, big endian: magic, direction, seed, length. An upload's reply is a verdict, and so is what follows the
// bytes of a download.
const (
	magic      = "tapir001"
	upload     = 'U' // client to server
	download   = 'D' // server to client
	requestLen = len(magic) + 1 + 8 + 8
	verdictLen = 8 + 8 + 8 + 2 + peerMax // bytes, hash, mismatch, length of peer, peer
	peerMax    = 64
	maxLength  = 1 << 40
)

// Serve answers transfers on l until l is closed, each connection by itself. It gives nil when l was closed.
func Serve(l net.Listener) error {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			// A client that goes away sees it by itself; there is nobody here to tell.
			_ = serveOne(c)
		}()
	}
}

func serveOne(c net.Conn) error {
	var req [requestLen]byte
	if _, err := io.ReadFull(c, req[:]); err != nil {
		return err
	}
	if string(req[:len(magic)]) != magic {
		return fmt.Errorf("request: want magic %q, got %q", magic, req[:len(magic)])
	}
	seed := binary.BigEndian.Uint64(req[len(magic)+1:])
	length := binary.BigEndian.Uint64(req[len(magic)+9:])
	if length > maxLength {
		return fmt.Errorf("request: want at most %d bytes, got %d", uint64(maxLength), length)
	}
	v := verdict{mismatch: -1, peer: c.RemoteAddr().String()}
	var err error
	switch req[len(magic)] {
	case upload:
		err = v.receive(c, seed, int64(length))
	case download:
		err = v.send(c, seed, int64(length))
	default:
		err = fmt.Errorf("request: unknown direction %q", req[len(magic)])
	}
	if err != nil {
		return err
	}
	_, err = c.Write(v.marshal())
	return err
}

// Upload sends n bytes of the stream of seed over c, whose other end is [Serve]'s.
func Upload(c net.Conn, seed uint64, n int64) (Result, error) {
	return transfer(c, upload, seed, n)
}

// Download asks for n bytes of the stream of seed over c and compares them.
func Download(c net.Conn, seed uint64, n int64) (Result, error) {
	return transfer(c, download, seed, n)
}

func transfer(c net.Conn, direction byte, seed uint64, n int64) (Result, error) {
	start := time.Now()
	req := append([]byte(magic), direction)
	req = binary.BigEndian.AppendUint64(req, seed)
	req = binary.BigEndian.AppendUint64(req, uint64(n))
	if _, err := c.Write(req); err != nil {
		return Result{}, fmt.Errorf("transfer: send the request: %w", err)
	}
	mine, theirs := verdict{mismatch: -1}, verdict{}
	var err error
	if direction == upload {
		err = mine.send(c, seed, n)
	} else {
		err = mine.receive(c, seed, n)
	}
	if err != nil {
		return Result{Bytes: mine.bytes, Mismatch: mine.mismatch}, fmt.Errorf("transfer: after %d of %d bytes: %w", mine.bytes, n, err)
	}
	if err := theirs.read(c); err != nil {
		return Result{Bytes: mine.bytes, Mismatch: mine.mismatch}, fmt.Errorf("transfer: wait for the other end's verdict: %w", err)
	}
	r := Result{Elapsed: time.Since(start), Peer: theirs.peer}
	sent, received := mine, theirs
	if direction == download {
		sent, received = theirs, mine
	}
	r.Sent, r.Received, r.Bytes, r.Mismatch = sent.hash, received.hash, received.bytes, received.mismatch
	return r, nil
}
