package main

import (
	"bytes"
	"io"
	"sync"
)

// screenBuffer keeps what a terminal was sent.
type screenBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// from reads until the terminal is closed.
func (s *screenBuffer) from(r io.Reader) {
	buf := make([]byte, 4096)
	for {
		n, err := r.Read(buf)
		s.mu.Lock()
		s.b.Write(buf[:n])
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (s *screenBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
