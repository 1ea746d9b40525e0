package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/tapir-cni/tapir/internal/microvm/agentapi"
)

// console is the guest's end of the serial line.
type console struct {
	f  *os.File
	in *bufio.Reader

	mu sync.Mutex // one message at a time
}

func openConsole(path string) (*console, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the console %s: %w", path, err)
	}
	t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return nil, fmt.Errorf("console %s: %w", path, err)
	}
	// Raw, as cfmakeraw(3): no echo, no lines of 4096 bytes at most, no signals.
	t.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	t.Oflag &^= unix.OPOST
	t.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	t.Cflag = t.Cflag&^(unix.CSIZE|unix.PARENB) | unix.CS8
	t.Cc[unix.VMIN], t.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, t); err != nil {
		return nil, fmt.Errorf("console %s: set raw mode: %w", path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	return &console{f: f, in: bufio.NewReaderSize(f, 1<<16)}, nil
}

// read gives the next request. Lines without the separator are not ours.
func (c *console) read() (agentapi.Request, error) {
	for {
		line, err := c.in.ReadBytes('\n')
		if err != nil {
			return agentapi.Request{}, err
		}
		at := bytes.IndexByte(line, agentapi.Separator)
		if at < 0 {
			continue
		}
		var r agentapi.Request
		if err := json.Unmarshal(line[at+1:], &r); err != nil {
			return agentapi.Request{}, fmt.Errorf("read a request: %w", err)
		}
		return r, nil
	}
}

func (c *console) write(r agentapi.Response) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	line := append([]byte{'\n', agentapi.Separator}, b...)
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err = io.Copy(c.f, bytes.NewReader(append(line, '\n')))
	return err
}

func (c *console) event(e agentapi.Event) error {
	b, err := json.Marshal(e)
	if err != nil {
		return err
	}
	return c.write(agentapi.Response{Result: b})
}
