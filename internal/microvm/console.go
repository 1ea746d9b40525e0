package microvm

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/tapir-cni/tapir/internal/microvm/agentapi"
)

// console is the node's end of the serial line: it sorts the agent's messages from the kernel's and brings answers to
// those who wait for them.
type console struct {
	w     io.Writer
	kept  tail
	event chan agentapi.Response // the first message with id 0
	gone  chan struct{}          // closed when the line has ended

	mu     sync.Mutex
	nextID int
	calls  map[int]chan agentapi.Response
}

func newConsole(w io.Writer, r io.ReadCloser) *console {
	c := &console{
		w: w, event: make(chan agentapi.Response, 1), gone: make(chan struct{}),
		calls: map[int]chan agentapi.Response{},
	}
	go c.read(r)
	return c
}

func (c *console) read(r io.ReadCloser) {
	defer close(c.gone)
	defer r.Close()
	in := bufio.NewReaderSize(r, 1<<16)
	for {
		line, err := in.ReadBytes('\n')
		if at := bytes.IndexByte(line, agentapi.Separator); at >= 0 {
			c.deliver(line[at+1:])
			line = line[:at]
		}
		if line = bytes.TrimRight(line, "\r\n"); len(line) > 0 {
			_, _ = c.kept.Write(append(line, '\n'))
		}
		if err != nil {
			return
		}
	}
}

func (c *console) deliver(message []byte) {
	var r agentapi.Response
	if err := json.Unmarshal(message, &r); err != nil {
		_, _ = fmt.Fprintf(&c.kept, "tapir: message cut short: %v: %s", err, message)
		return
	}
	if r.ID == 0 {
		select {
		case c.event <- r:
		default: // one is enough
		}
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if ch, ok := c.calls[r.ID]; ok {
		delete(c.calls, r.ID)
		ch <- r
	}
}

func (c *console) log() string { return c.kept.String() }

// wait returns when all that the guest said has been read.
func (c *console) wait() { <-c.gone }

var errGone = errors.New("the machine has ended")

func (c *console) waitForEvent(ctx context.Context) (agentapi.Event, error) {
	var r agentapi.Response
	select {
	case r = <-c.event:
	case <-c.gone:
		select {
		case r = <-c.event: // its last words
		default:
			return agentapi.Event{}, errGone
		}
	case <-ctx.Done():
		return agentapi.Event{}, ctx.Err()
	}
	if r.Error != "" {
		return agentapi.Event{}, errors.New(r.Error)
	}
	var e agentapi.Event
	return e, json.Unmarshal(r.Result, &e)
}

// call sends a request and waits for its answer, whose result goes into result unless that is nil.
func (c *console) call(ctx context.Context, op string, args, result any) error {
	req := agentapi.Request{Op: op}
	if args != nil {
		b, err := json.Marshal(args)
		if err != nil {
			return err
		}
		req.Args = b
	}
	answer := make(chan agentapi.Response, 1)
	c.mu.Lock()
	c.nextID++
	req.ID = c.nextID
	c.calls[req.ID] = answer
	err := c.send(req)
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.calls, req.ID)
		c.mu.Unlock()
	}()
	if err != nil {
		return err
	}
	select {
	case r := <-answer:
		if r.Error != "" {
			return errors.New(r.Error)
		}
		if result == nil {
			return nil
		}
		return json.Unmarshal(r.Result, result)
	case <-c.gone:
		return errGone
	case <-ctx.Done():
		return ctx.Err()
	}
}

// send writes one request; c.mu is held, so that two do not mix.
func (c *console) send(req agentapi.Request) error {
	b, err := json.Marshal(req)
	if err != nil {
		return err
	}
	line := append([]byte{agentapi.Separator}, b...)
	_, err = c.w.Write(append(line, '\n'))
	return err
}
