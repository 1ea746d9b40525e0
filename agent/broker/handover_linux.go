package broker

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/tapir-cni/tapir/agent/client"
	"github.com/tapir-cni/tapir/internal/jsonkeys"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/tap"
	"golang.org/x/sys/unix"
)

// serve answers the one request of a connection.
func (s *Server) serve(conn *net.UnixConn, p peer) {
	var r client.Request
	line, refusal := readRequest(conn)
	if refusal == nil {
		r, refusal = parseRequest(line)
	}
	if refusal == nil {
		refusal = s.handOver(conn, p, r)
	}
	if refusal != nil {
		s.refused(p, r, refusal)
		s.sendRefusal(conn, refusal)
	}
}

// readRequest reads up to the first newline.
func readRequest(conn *net.UnixConn) ([]byte, *client.Error) {
	var text []byte
	buf := make([]byte, client.MaxRequest)
	for {
		n, err := conn.Read(buf) // descriptors that a peer sends are closed by the kernel: nobody asks for them
		text = append(text, buf[:n]...)
		line, _, ended := bytes.Cut(text, []byte{'\n'})
		switch {
		case ended && len(line) < client.MaxRequest:
			return line, nil
		case len(text) >= client.MaxRequest:
			return nil, refuse(client.TooLarge, "request: want one line of at most %d bytes", client.MaxRequest)
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil, refuse(client.TimedOut, "request: want a line that ends with a newline, got %d bytes and no more within the time", len(text))
		case errors.Is(err, io.EOF):
			return nil, refuse(client.Malformed, "request: want a line that ends with a newline, got %d bytes", len(text))
		case err != nil:
			return nil, refuse(client.Internal, "read the request: %v", err)
		}
	}
}

// parseRequest reads the version first: another one may have other keys.
func parseRequest(line []byte) (r client.Request, refusal *client.Error) {
	var v struct {
		Version *int `json:"version"`
	}
	if err := json.Unmarshal(line, &v); err != nil {
		return r, refuse(client.Malformed, "request: %v", err)
	}
	if v.Version == nil {
		return r, refuse(client.Malformed, "request: want a JSON object with \"version\": %d, got none", client.Version)
	}
	if *v.Version != client.Version {
		return r, refuse(client.BadVersion, "request: want version %d, got %d", client.Version, *v.Version)
	}
	faults, err := jsonkeys.Check(line, r)
	if err == nil {
		err = faults.Err()
	}
	if err == nil {
		err = json.Unmarshal(line, &r)
	}
	if err != nil {
		return client.Request{}, refuse(client.Malformed, "request: %v", err)
	}
	if r.ContainerID == "" || r.IfName == "" {
		return r, refuse(client.Malformed, "request: want containerID and ifName, got %q and %q", r.ContainerID, r.IfName)
	}
	return r, nil
}

// handOver opens the queues and sends them. Nothing stays open here, whatever happens.
func (s *Server) handOver(conn *net.UnixConn, p peer, r client.Request) (refusal *client.Error) {
	a, dir, refusal := s.find(r)
	if refusal != nil {
		return refusal
	}
	if refusal := s.authorise(p, a, dir, r); refusal != nil {
		return refusal
	}
	s.opens <- struct{}{}
	defer func() { <-s.opens }()
	q, description, err := Open(a, r.Queues)
	if err != nil {
		return asRefusal(err)
	}
	defer func() {
		if err := closeQueues(q); err != nil {
			s.c.Logger.Error("could not let go of queues", "attachment", a.Key.String(), "error", err)
		}
	}()
	if err := send(conn, description, q.FDs()); err != nil {
		s.c.Logger.Warn("could not hand over", "attachment", a.Key.String(), "pid", p.pid, "uid", p.uid, "error", err)
		return nil // the peer went, or has a part: it sees the connection end
	}
	s.c.Logger.Info("handed over", "attachment", a.Key.String(), "tap", q.Name, "queues", description.Queues, "napi", description.NAPI,
		"attached", q.Attached, "pid", p.pid, "uid", p.uid)
	return nil
}

// find looks the attachment up in each state directory.
func (s *Server) find(r client.Request) (a state.Attachment, dir string, refusal *client.Error) {
	type at struct {
		state.Attachment
		dir string
	}
	var found []at
	for _, d := range s.c.StateDirs {
		var here []at
		err := s.store(d).View(s.ctx, func(tx *state.Tx) error {
			here = nil
			return tx.ForEach(r.Network, func(a state.Attachment) error {
				if a.ContainerID == r.ContainerID && a.IfName == r.IfName {
					here = append(here, at{a, d})
				}
				return nil
			})
		})
		if err != nil {
			return a, "", refuse(client.Internal, "read the state: %v", err)
		}
		found = append(found, here...)
	}
	name := r.ContainerID + "/" + r.IfName
	switch len(found) {
	case 1:
		return found[0].Attachment, found[0].dir, nil
	case 0:
		return a, "", refuse(client.Unknown, "no attachment %q on this node", name)
	}
	return a, "", refuse(client.Ambiguous, "attachment %q: want one, got %d; set \"network\", as in %q", name, len(found), found[0].Network)
}

// authorise lets root have everything, and others what the kernel would let them open and whose token they can read.
func (s *Server) authorise(p peer, a state.Attachment, dir string, r client.Request) *client.Error {
	if err := open(a); err != nil {
		return asRefusal(err)
	}
	if p.uid == 0 {
		return nil
	}
	netns, _ := a.TAPNetns() // open has looked
	status, err := tap.ReadStatus(netns, a.TAP.Index)
	if err != nil {
		return openRefusal(err)
	}
	if refusal := p.mayOpen(status.Info); refusal != nil {
		return refusal
	}
	select {
	case s.made <- struct{}{}:
	default: // the sweep that is to come looks at this one, too
	}
	return checkToken(dir, a, status.Info, r.Token)
}

// send writes the description with the first descriptors, and the others with a newline each message. The bytes of a message and
// its descriptors arrive together, and no message joins another that has descriptors (unix(7)).
func send(conn *net.UnixConn, d client.Description, fds []int) error {
	line, err := json.Marshal(d)
	if err != nil {
		return err
	}
	line = append(line, '\n')
	for len(fds) > 0 {
		n := min(len(fds), client.MaxFDs)
		if wrote, _, err := conn.WriteMsgUnix(line, unix.UnixRights(fds[:n]...), nil); err != nil || wrote != len(line) {
			return errors.Join(fmt.Errorf("send %d descriptors: wrote %d of %d bytes", n, wrote, len(line)), err)
		}
		line, fds = []byte{'\n'}, fds[n:]
	}
	return nil
}

// refused logs a refusal. The token is not logged.
func (s *Server) refused(p peer, r client.Request, refusal *client.Error) {
	s.c.Logger.Info("refused", "code", string(refusal.Code), "reason", refusal.Message, "container", r.ContainerID, "ifName", r.IfName,
		"queues", r.Queues, "pid", p.pid, "uid", p.uid)
}

// sendRefusal sends it. A peer that said nothing in its time has as long again to take it, which costs no time of ours: it fits
// into the socket's buffer.
func (s *Server) sendRefusal(conn *net.UnixConn, refusal *client.Error) {
	line, err := json.Marshal(client.Refusal{Version: client.Version, Error: refusal})
	if err == nil {
		err = conn.SetDeadline(time.Now().Add(s.c.Timeout))
	}
	if err == nil {
		_, err = conn.Write(append(line, '\n'))
	}
	if err != nil {
		s.c.Logger.Debug("could not tell a peer why it is refused", "error", err)
	}
}

func asRefusal(err error) *client.Error {
	if refusal, ok := errors.AsType[*client.Error](err); ok {
		return refusal
	}
	return refuse(client.Internal, "%v", err)
}
