// Package cri asks a container runtime for its pod sandboxes by the Kubernetes Container Runtime Interface, version v1
// (k8s.io/cri-api, pkg/apis/runtime/v1/api.proto). It makes the one call that tapird needs, over net/http's HTTP/2: gRPC's library and the
// generated code would be more than the rest of tapird. Module test/cri holds it against both.
package cri

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// method is the call (service RuntimeService of api.proto).
const method = "/runtime.v1.RuntimeService/ListPodSandbox"

// timeout bounds a call. A runtime that has a thousand sandboxes answers in some ten milliseconds.
const timeout = 20 * time.Second

// maxAnswer bounds an answer, in bytes: a sandbox with its labels and annotations is a few KiB.
const maxAnswer = 256 << 20

// Sandbox is one pod sandbox.
type Sandbox struct {
	ID    string // the container id of its attachments
	Ready bool   // its state is SANDBOX_READY
}

// Client asks one runtime. It keeps no connection between calls: there are minutes between them.
type Client struct{ socket string }

// New makes a Client of an endpoint: a path, or one behind "unix://".
func New(endpoint string) (*Client, error) {
	path := strings.TrimPrefix(endpoint, "unix://")
	// 108 bytes of sun_path and a NUL (unix(7)).
	if !filepath.IsAbs(path) || len(path) > 107 {
		return nil, fmt.Errorf("want the absolute path of a unix socket of at most 107 bytes, or one behind unix://, got %q", endpoint)
	}
	return &Client{socket: path}, nil
}

// StatusError is a call that the runtime answered with an error.
type StatusError struct {
	Code    int // of google.golang.org/grpc/codes
	Message string
}

func (e *StatusError) Error() string { return fmt.Sprintf("grpc status %d: %s", e.Code, e.Message) }

// Sandboxes lists all sandboxes, whatever their state.
func (c *Client) Sandboxes(ctx context.Context) ([]Sandbox, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	answer, err := c.call(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask the runtime at %s for its sandboxes: %w", c.socket, err)
	}
	list, err := sandboxes(answer)
	if err != nil {
		return nil, fmt.Errorf("read the sandboxes of the runtime at %s: %w", c.socket, err)
	}
	return list, nil
}

// call sends an empty ListPodSandboxRequest and gives the message of the answer.
func (c *Client) call(ctx context.Context) ([]byte, error) {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	t := &http.Transport{
		Protocols: &protocols, DisableCompression: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", c.socket)
		},
	}
	defer t.CloseIdleConnections()
	empty := []byte{0, 0, 0, 0, 0} // not compressed, no bytes
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost"+method, strings.NewReader(string(empty)))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("Te", "trailers")
	resp, err := t.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, err
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("want HTTP status 200, got %s", resp.Status)
	case len(body) > maxAnswer:
		return nil, fmt.Errorf("want an answer of at most %d bytes", maxAnswer)
	}
	if err := status(resp); err != nil {
		return nil, err
	}
	return message(body)
}

// status is the call's own, in the trailers, or in the headers of an answer without a message.
func status(resp *http.Response) error {
	h := resp.Trailer
	if h.Get("Grpc-Status") == "" {
		h = resp.Header
	}
	code, err := strconv.Atoi(h.Get("Grpc-Status"))
	if err != nil {
		return fmt.Errorf("want a grpc-status, got %q; is it a CRI socket?", h.Get("Grpc-Status"))
	}
	if code == 0 {
		return nil
	}
	text := h.Get("Grpc-Message")
	if plain, err := url.PathUnescape(text); err == nil {
		text = plain
	}
	return &StatusError{Code: code, Message: text}
}

// message takes the one message out of the frame that gRPC puts around it.
func message(body []byte) ([]byte, error) {
	if len(body) < 5 || uint64(len(body)-5) != uint64(binary.BigEndian.Uint32(body[1:])) {
		return nil, errors.New("want one whole message")
	}
	if body[0] != 0 {
		return nil, errors.New("want a message that is not compressed")
	}
	return body[5:], nil
}
