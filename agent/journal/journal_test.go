package journal

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func open(t *testing.T, dir string) *Journal {
	t.Helper()
	j := New(dir)
	if err := j.Record(change("a", "threaded", "0", "1")); err == nil {
		t.Error("want an error of a journal that was not opened, got none")
	}
	aside, err := j.Open()
	if err != nil || aside != "" {
		t.Fatalf("open: aside %q, %v", aside, err)
	}
	return j
}

func change(object, setting, before, after string) Change {
	return Change{Part: "tuner", Object: object, Index: 7, Setting: setting, Before: before, After: after, Why: "small frames", When: time.Unix(1, 0).UTC()}
}

// What was there before the first change is what is given back, by the next process too.
func TestTheFirstBeforeStays(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir)
	for _, c := range []Change{change("a", "threaded", "0", "1"), change("b", "threaded", "0", "1"), change("a", "threaded", "1", "2")} {
		if err := j.Record(c); err != nil {
			t.Fatal(err)
		}
	}
	want := []Change{change("a", "threaded", "0", "2"), change("b", "threaded", "0", "1")}
	for _, j := range []*Journal{j, open(t, dir)} {
		if diff := cmp.Diff(want, j.Changes("tuner")); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(want[:1], j.Of("a")); diff != "" {
			t.Errorf("of one (-want +got):\n%s", diff)
		}
		if got := j.Changes("uplink"); len(got) != 0 {
			t.Errorf("want none of another part, got %+v", got)
		}
	}
}

// A device that was made anew has its own entry: what is given back to the old one is none of its business.
func TestAnotherIfindexIsAnotherSetting(t *testing.T) {
	j := open(t, t.TempDir())
	old, fresh := change("a", "threaded", "1", "0"), change("a", "threaded", "0", "1")
	fresh.Index = 8
	if err := j.Record(old, fresh); err != nil {
		t.Fatal(err)
	}
	if err := j.Forget(old); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Change{fresh}, j.Changes("")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestWithoutChangesThereIsNoFile(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir)
	c := change("a", "threaded", "0", "1")
	for _, step := range []func(...Change) error{j.Record, j.Forget, j.Forget} {
		if err := step(c); err != nil {
			t.Fatal(err)
		}
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != 0 {
		t.Errorf("want an empty folder, got %v, %v", names, err)
	}
}

func TestWhatCannotBeWrittenIsNotRemembered(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gone")
	j := open(t, dir)
	if err := j.Record(change("a", "threaded", "0", "1")); err == nil {
		t.Error("want an error where there is no folder, got none")
	}
	if got := j.Changes(""); len(got) != 0 {
		t.Errorf("want nothing remembered, got %+v", got)
	}
}

func TestADamagedFileIsSetAside(t *testing.T) {
	for name, text := range map[string]string{"cut": `{"version":1,"chan`, "newer": `{"version":2}`, "empty": ""} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, File), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		j := New(dir)
		aside, err := j.Open()
		if err != nil || aside == "" || len(j.Changes("")) != 0 {
			t.Errorf("%s: want it set aside, got %q, %v", name, aside, err)
			continue
		}
		if kept, err := os.ReadFile(aside); err != nil || string(kept) != text {
			t.Errorf("%s: want it kept, got %q, %v", name, kept, err)
		}
	}
}

func TestAnEarlierBootIsForgotten(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir)
	if err := j.Record(change("a", "threaded", "0", "1")); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, File)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(data), j.boot, "another", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := open(t, dir).Changes(""); len(got) != 0 {
		t.Errorf("want nothing of another boot, got %+v", got)
	}
}
