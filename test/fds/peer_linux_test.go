package fds_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/agent/client"
)

// peerArg makes the test's binary a peer: it takes on an identity, asks, says what it got, and keeps it until its input ends.
const peerArg = "__peer"

// patience bounds each wait.
const patience = 20 * time.Second

// asking is what a peer is told, on its command line.
type asking struct {
	UID, GID int
	Groups   []int
	Request  client.Request
}

// answer is what it says, as one line.
type answer struct {
	client.Description
	FDs     []int
	Code    client.Code
	Message string
}

func peerMain(args []string) int {
	var a asking
	err := json.Unmarshal([]byte(args[0]), &a)
	if err == nil && a.UID != 0 {
		err = errors.Join(syscall.Setgroups(a.Groups), syscall.Setgid(a.GID), syscall.Setuid(a.UID))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "peer:", err)
		return 1
	}
	var out answer
	q, err := client.Client{}.Queues(context.Background(), a.Request)
	var refused *client.Error
	switch {
	case errors.As(err, &refused):
		out.Code, out.Message = refused.Code, err.Error()
	case err != nil:
		out.Message = err.Error()
	default:
		out.Description, out.FDs = q.Description, q.FDs
	}
	if err := json.NewEncoder(os.Stdout).Encode(out); err != nil {
		return 1
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// A peer is such a process.
type peer struct {
	answer
	pid int
	end func()
}

// ask starts a peer and waits for what it got.
func ask(t testing.TB, a asking) *peer {
	t.Helper()
	text, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe", peerArg, string(text))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &peer{pid: cmd.Process.Pid}
	ended := false
	p.end = func() {
		if ended {
			return
		}
		ended = true
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("peer: %v", err)
		}
	}
	t.Cleanup(p.end)
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &p.answer)
	}
	if err != nil {
		t.Fatalf("peer: %v: %s", err, line)
	}
	return p
}
