// Package output keeps what a process says, for tests and benchmarks that read it while it runs.
package output

import (
	"bytes"
	"sync"
)

// Buffer is a process's output so far. One goroutine may write while others read; the zero value is empty.
type Buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
