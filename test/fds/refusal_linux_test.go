package fds_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/agent/client"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/state"
	"golang.org/x/sys/unix"
)

// put changes the record of an attachment behind the plugin's back.
func put(t testing.TB, p *pod, change func(*state.Attachment)) {
	t.Helper()
	err := state.New(state.Config{}).Update(context.Background(), func(tx *state.Tx) error {
		a, _, err := tx.Attachment(state.Key{Network: "pods", ContainerID: p.id, IfName: "eth0"})
		if err != nil {
			return err
		}
		change(&a)
		return tx.Put(a)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Each refusal says what was wanted and what was got; none leaves a descriptor, a queue or a TAP that is down.
func TestRefusals(t *testing.T) {
	n := newNode(t)
	d := n.tapird()
	mine, two, nobodys := n.add(`"queues": 1, "owner": 4711`), n.add(`"queues": 2, "owner": 4711, "group": 4712`), n.add(`"queues": 1`)
	dead, noNetns, pending, busy := n.add(`"queues": 1`), n.add(`"queues": 1`), n.add(`"queues": 1`), n.add(`"queues": 1`)
	dead.del()
	unmount(t, noNetns.netns)
	put(t, pending, func(a *state.Attachment) { a.Status = state.Pending })
	holder := ask(t, asking{Request: busy.request(0)})
	ask(t, asking{UID: 4711, GID: 4711, Request: mine.request(0)}).end()
	token := func(p *pod, token string) client.Request {
		r := p.request(0)
		r.Token = token
		return r
	}
	mineToken := ""
	for _, text := range tokens(t) {
		mineToken = strings.TrimSpace(text)
	}
	before := d.idleFDs()
	for _, tt := range []struct {
		name string
		asking
		code client.Code
		want string
	}{
		{"unknown", asking{Request: client.Request{ContainerID: "none", IfName: "eth0"}}, client.Unknown, `no attachment "none/eth0"`},
		{"cut id", asking{Request: client.Request{ContainerID: mine.id[:3], IfName: "eth0"}}, client.Unknown, `no attachment "pod/eth0"`},
		{"another interface", asking{Request: client.Request{ContainerID: mine.id, IfName: "eth1"}}, client.Unknown, "no attachment"},
		{"dead", asking{Request: dead.request(0)}, client.Unknown, "no attachment"},
		{"netns gone", asking{Request: noNetns.request(0)}, client.NetnsGone, noNetns.netns},
		{"pending", asking{Request: pending.request(0)}, client.NotReady, "its ADD has not ended"},
		{"busy", asking{Request: busy.request(0)}, client.QueueBusy, "its only queue is attached already"},
		{"257", asking{Request: two.request(257)}, client.BadQueues, "want 1 to 256, or 0 for all, got 257"},
		{"more than made", asking{Request: two.request(3)}, client.BadQueues, "want at most 2"},
		{"below 0", asking{Request: two.request(-1)}, client.BadQueues, "got -1"},
		{"wrong uid", asking{UID: 4999, GID: 4711, Request: token(mine, mineToken)}, client.WrongUser, "uid 4999: the TAP belongs to uid 4711"},
		{"owner without the group", asking{UID: 4711, GID: 4711, Request: two.request(0)}, client.WrongUser, "the TAP belongs to gid 4712"},
		{"group without the owner", asking{UID: 4713, GID: 4712, Request: two.request(0)}, client.WrongUser, "the TAP belongs to uid 4711"},
		{"nobody's", asking{UID: 4711, GID: 4711, Request: nobodys.request(0)}, client.WrongUser, "the TAP belongs to uid 0"},
		{"wrong token", asking{UID: 4711, GID: 4711, Request: token(mine, "wrong")}, client.WrongToken, "got another"},
		{"another attachment's token", asking{UID: 4711, GID: 4712, Request: token(two, mineToken)}, client.WrongToken, "got another"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := ask(t, tt.asking)
			if p.Code != tt.code || !strings.Contains(p.Message, tt.want) || len(p.FDs) > 0 {
				t.Errorf("want %s and %q, got %+v", tt.code, tt.want, p.answer)
			}
		})
	}
	d.wantFDs(before)
	d.wantHome()
	holder.end()
	wantNoQueues(t)
	for _, p := range []*pod{mine, two, nobodys, pending, busy} {
		p.wantUp()
	}
	put(t, pending, func(a *state.Attachment) { a.Status = state.Ready })
	if mineToken != "" && strings.Contains(d.text(), mineToken) {
		t.Error("a token is in the log")
	}
}

// unmount takes the netns away as a runtime does that does not call DEL.
func unmount(t testing.TB, path string) {
	t.Helper()
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

// raw sends bytes and reads the refusal.
func raw(t testing.TB, text string) client.Error {
	t.Helper()
	conn, err := net.Dial("unix", client.DefaultSocket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	_, _ = conn.Write([]byte(text)) // tapird may have answered before the end
	line, err := bufio.NewReader(conn).ReadBytes('\n')
	var r client.Refusal
	if err == nil {
		err = json.Unmarshal(line, &r)
	}
	if err != nil || r.Error == nil || r.Version != client.Version {
		t.Fatalf("want a refusal, got %v: %s", err, line)
	}
	return *r.Error
}

// What no launcher sends.
func TestMalformedRequests(t *testing.T) {
	n := newNode(t)
	d := n.tapird("--timeout", "1s")
	raw(t, "\n")
	before := d.idleFDs()
	for _, tt := range []struct {
		text string
		code client.Code
		want string
	}{
		{"\n", client.Malformed, "request"},
		{"{\n", client.Malformed, "request"},
		{"[]\n", client.Malformed, "request"},
		{"{}\n", client.Malformed, `"version": 1`},
		{`{"version": 2, "pod": "x"}` + "\n", client.BadVersion, "want version 1, got 2"},
		{`{"version": 1, "containerId": "x"}` + "\n", client.Malformed, "containerID"},
		{`{"version": 1, "containerID": "x", "ifName": "eth0", "queues": "2"}` + "\n", client.Malformed, "queues"},
		{`{"version": 1, "containerID": "x"}` + "\n", client.Malformed, "ifName"},
		{strings.Repeat("x", client.MaxRequest), client.TooLarge, "4096"},
		{strings.Repeat(" ", client.MaxRequest) + "\n", client.TooLarge, "4096"},
		{strings.Repeat("x", 1<<20), client.TooLarge, "4096"},
		{"", client.TimedOut, "got 0 bytes"},
		{`{"version": 1`, client.TimedOut, "got 13 bytes"},
	} {
		if got := raw(t, tt.text); got.Code != tt.code || !strings.Contains(got.Message, tt.want) {
			t.Errorf("%.60q: want %s and %q, got %+v", tt.text, tt.code, tt.want, got)
		}
	}
	sendDescriptors(t)
	d.wantFDs(before)
}

// sendDescriptors sends a request with descriptors, which nobody asked for.
func sendDescriptors(t testing.TB) {
	t.Helper()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: client.DefaultSocket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, _, err := conn.WriteMsgUnix([]byte("{}\n"), unix.UnixRights(0, 1, 2), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(conn).ReadBytes('\n'); err != nil {
		t.Error(err)
	}
}

// Silent peers are refused above the bound, and the others served again once they have gone.
func TestOverload(t *testing.T) {
	n := newNode(t)
	d := n.tapird("--max-peers", "4")
	pod := n.add(`"queues": 1`)
	ask(t, asking{Request: pod.request(0)}).end()
	before := d.idleFDs()
	var silent []net.Conn
	for range 4 {
		conn, err := net.Dial("unix", client.DefaultSocket)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		silent = append(silent, conn)
	}
	testnode.Eventually(t, patience, func() error { // all four were let in
		if got := d.fds(); got != before+4 {
			return fmt.Errorf("want %d descriptors, got %d", before+4, got)
		}
		return nil
	})
	if got := raw(t, ""); got.Code != client.Overload {
		t.Errorf("want overload, got %+v", got)
	}
	for _, conn := range silent {
		_ = conn.Close()
	}
	d.wantFDs(before)
	if p := ask(t, asking{Request: pod.request(0)}); len(p.FDs) != 1 {
		t.Errorf("afterwards: %+v", p.answer)
	}
}
