package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tapir-cni/tapir/agent/journal"
	"github.com/tapir-cni/tapir/state"
)

// inspectOutput runs inspect, which has findings here: the attachments of these tests are TAPs without the rest.
func inspectOutput(t *testing.T, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	root := newRoot()
	root.SetArgs(append([]string{"inspect"}, args...))
	root.SetOut(&out)
	root.SetErr(&out)
	if err := root.ExecuteContext(t.Context()); !errors.Is(err, errFindings) {
		t.Fatalf("want findings, got %v\n%s", err, &out)
	}
	return out.String()
}

func TestInspectShowsEverythingAndWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	a := sandbox(t, dir, "aaaa", 2000311, 1)
	tag(t, a)
	sandbox(t, dir, "bbbb", 2000312, 1) // another one's things are not shown
	q := openTAP(t, a, 1, false)
	changes := map[string]any{"version": 1, "bootID": "x", "changes": []journal.Change{
		{Part: "tuner", Object: a.Key.String(), Setting: "gro_flush_timeout", Before: "0", After: "20000", Why: "small frames"},
		{Part: "tuner", Object: "net/bbbb/eth0", Setting: "napi_defer_hard_irqs", Before: "0", After: "2"},
	}}
	data, err := json.Marshal(changes)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, journal.File), data, 0o600); err != nil {
		t.Fatal(err)
	}
	tapird := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/attachments/net/aaaa/eth0" || r.URL.Query().Get("stateDir") != dir {
			t.Errorf("tapird was asked for %s", r.URL)
		}
		_, _ = w.Write([]byte(`{"decisions": [{"kind": "rule", "from": "idle", "to": "small", "why": "of the server", "result": "done"}]}`))
	}))
	defer tapird.Close()
	args := []string{"aaaa/eth0", "--state-dir", dir, "--page-address", strings.TrimPrefix(tapird.URL, "http://")}
	var got inspected
	out := inspectOutput(t, append(args, "-o", "json")...)
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if got.Record.ContainerID != "aaaa" || got.TAP == nil || got.TAP.Queues != 1 || got.Counters == nil || got.Path == nil || got.Devices["tap"].Index != a.TAP.Index {
		t.Errorf("got %s", out)
	}
	if len(got.Queues) != 1 || got.Queues[0].PID != os.Getpid() || got.Queues[0].FD != q.FDs()[0] {
		t.Errorf("queues: got %+v", got.Queues)
	}
	if len(got.Changes) != 1 || got.Changes[0].Setting != "gro_flush_timeout" || len(got.Decisions) != 1 || got.Tapird != "answers" {
		t.Errorf("changes %+v, decisions %+v, tapird %q", got.Changes, got.Decisions, got.Tapird)
	}
	text := inspectOutput(t, args...)
	for _, want := range []string{"WHAT LOOKS WRONG", "no NAPI", "gro_flush_timeout", "of the server", "tap-eth0", a.Netns} {
		if !strings.Contains(text, want) {
			t.Errorf("want %q in\n%s", want, text)
		}
	}
	if strings.Contains(out+text, "bbbb") {
		t.Errorf("want nothing of another attachment, got\n%s%s", out, text)
	}
	tapird.Close()
	if text := inspectOutput(t, args...); !strings.Contains(text, "does not answer") {
		t.Errorf("without tapird: got\n%s", text)
	}
	if err := os.WriteFile(filepath.Join(dir, journal.File), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if text := inspectOutput(t, args...); !strings.Contains(text, "COULD NOT BE LOOKED AT") {
		t.Errorf("a journal that is broken: got\n%s", text)
	}
	if _, err := os.Stat(filepath.Join(dir, journal.File)); err != nil {
		t.Errorf("want the journal left where it is, got %v", err)
	}
}

func TestInspectOfAnAddThatDied(t *testing.T) {
	dir := t.TempDir()
	a := sandbox(t, dir, "cccc", 2000313, 1)
	a.Status = state.Pending
	if err := state.New(state.Config{Dir: dir}).Update(t.Context(), func(tx *state.Tx) error { return tx.Put(a) }); err != nil {
		t.Fatal(err)
	}
	if text := inspectOutput(t, "cccc", "--state-dir", dir); !strings.Contains(text, "its ADD did not finish") {
		t.Errorf("got\n%s", text)
	}
}
