package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Timeout bounds one [Client.Queues] whose context has no deadline.
const Timeout = 10 * time.Second

// maxToken bounds a token's file, in bytes.
const maxToken = 128

// retryEvery is the pause before tapird is asked again.
const retryEvery = 50 * time.Millisecond

// Client asks one tapird. Its zero value asks the node's own.
type Client struct {
	Socket string        // [DefaultSocket] where empty
	Wait   time.Duration // how long to go on asking while tapird is not there, restarts or is overloaded; 0: not at all
}

// Queues are descriptors that tapird handed over.
type Queues struct {
	Description
	FDs []int // by queue, non-blocking and close-on-exec
}

// Close closes the descriptors: the queues go.
func (q *Queues) Close() error {
	err := closeAll(q.FDs)
	q.FDs = nil
	return err
}

// Queues asks for queues. Where r.Token is empty and tapird wants one, it is read from the file that tapird names. On error
// no descriptor stays open. Errors: [*Error] for a refusal, the context's, or the system's.
func (c Client) Queues(ctx context.Context, r Request) (*Queues, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, Timeout+c.Wait)
		defer cancel()
	}
	r.Version = Version
	q, err := c.patiently(ctx, r)
	var refused *Error
	if r.Token == "" && errors.As(err, &refused) && refused.Code == TokenRequired {
		var readErr error
		if r.Token, readErr = readToken(refused.TokenFile); readErr != nil {
			return nil, fmt.Errorf("%w; %w", err, readErr)
		}
		q, err = c.patiently(ctx, r)
	}
	return q, err
}

// readToken reads a token's file, and nothing else that whoever listens at the socket may name.
func readToken(path string) (string, error) {
	if filepath.Base(filepath.Dir(path)) != "tokens" {
		return "", fmt.Errorf("token file: want one in a folder \"tokens\", got %q", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxToken+1))
	if err != nil {
		return "", err
	}
	if len(text) > maxToken {
		return "", fmt.Errorf("token file %q: want at most %d bytes", path, maxToken)
	}
	return strings.TrimSpace(string(text)), nil
}

// patiently asks again while another try may have another answer: nothing was handed over, and tapird keeps nothing of it.
func (c Client) patiently(ctx context.Context, r Request) (*Queues, error) {
	for until := time.Now().Add(c.Wait); ; {
		q, err := c.ask(ctx, r)
		if err == nil || !again(err) || !time.Now().Before(until) {
			return q, err
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(err, ctx.Err())
		case <-time.After(retryEvery):
		}
	}
}

// again says whether tapird was not there, went away during the answer, or had too much to do.
func again(err error) bool {
	var refused *Error
	if errors.As(err, &refused) {
		return refused.Code == Overload
	}
	for _, gone := range []error{unix.ENOENT, unix.ECONNREFUSED, unix.ECONNRESET, unix.EPIPE, io.ErrUnexpectedEOF} {
		if errors.Is(err, gone) {
			return true
		}
	}
	return false
}

func (c Client) ask(ctx context.Context, r Request) (*Queues, error) {
	socket := c.Socket
	if socket == "" {
		socket = DefaultSocket
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("ask tapird: %w", err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	line, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("ask tapird: %w", err)
	}
	_, writeErr := conn.Write(append(line, '\n')) // a refusal may be there all the same
	q, err := receive(conn.(*net.UnixConn))
	var refused *Error
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	} else if err != nil && writeErr != nil && !errors.As(err, &refused) {
		err = writeErr
	}
	if err != nil {
		return nil, fmt.Errorf("ask tapird at %s for the queues of %q: %w", socket, r.ContainerID+"/"+r.IfName, err)
	}
	return q, nil
}

// receive reads one line, and as many descriptors as it says.
func receive(conn *net.UnixConn) (q *Queues, err error) {
	q = &Queues{}
	defer func() {
		if err != nil {
			err = errors.Join(err, q.Close())
			q = nil
		}
	}()
	var text []byte
	buf, oob := make([]byte, 4096), make([]byte, unix.CmsgSpace(4*MaxFDs))
	for whole := false; !whole || len(q.FDs) < q.Description.Queues; {
		n, oobn, flags, _, err := conn.ReadMsgUnix(buf, oob)
		fds, fdErr := descriptors(oob[:oobn])
		q.FDs = append(q.FDs, fds...)
		switch {
		case fdErr != nil:
			return q, fdErr
		case flags&unix.MSG_CTRUNC != 0:
			return q, fmt.Errorf("descriptors were cut off after %d; raise the limit of open files", len(q.FDs))
		case err == nil && n == 0 || errors.Is(err, io.EOF):
			return q, fmt.Errorf("it ended after %d bytes and %d descriptors: %w", len(text), len(q.FDs), io.ErrUnexpectedEOF)
		case err != nil:
			return q, err
		case whole:
			continue
		}
		text = append(text, buf[:n]...)
		if len(text) > MaxAnswer {
			return q, fmt.Errorf("answer: want at most %d bytes, got %d", MaxAnswer, len(text))
		}
		line, _, ended := bytes.Cut(text, []byte{'\n'})
		if !ended {
			continue
		}
		whole = true
		if q.Description, err = parse(line); err != nil {
			return q, err
		}
	}
	if len(q.FDs) != q.Description.Queues {
		return q, fmt.Errorf("want %d descriptors, got %d", q.Description.Queues, len(q.FDs))
	}
	return q, nil
}

// parse reads the line: a description or a refusal.
func parse(line []byte) (Description, error) {
	var answer struct {
		Description
		Error *Error `json:"error"`
	}
	switch err := json.Unmarshal(line, &answer); {
	case err != nil:
		return Description{}, fmt.Errorf("answer: %w", err)
	case answer.Error != nil:
		return Description{}, answer.Error
	case answer.Version != Version:
		return Description{}, fmt.Errorf("answer: want version %d, got %d", Version, answer.Version)
	case answer.Queues < 1:
		return Description{}, fmt.Errorf("answer: want 1 queue or more, got %d", answer.Queues)
	}
	return answer.Description, nil
}

// descriptors are those of the control messages. The net package has set close-on-exec on each as it came.
func descriptors(oob []byte) (fds []int, err error) {
	if len(oob) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, os.NewSyscallError("parse control message", err)
	}
	for _, m := range messages {
		got, err := unix.ParseUnixRights(&m)
		if err != nil {
			continue // another kind of message
		}
		fds = append(fds, got...)
	}
	return fds, nil
}

func closeAll(fds []int) error {
	var errs []error
	for _, fd := range fds {
		errs = append(errs, os.NewSyscallError("close", unix.Close(fd)))
	}
	return errors.Join(errs...)
}
