package counts

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// childEnv asks the test binary to count calls in the folder that it names, as one of several processes.
const childEnv = "TAPIR_COUNTS_DIR"

const children, each = 8, 500

func TestMain(m *testing.M) {
	dir := os.Getenv(childEnv)
	if dir == "" {
		os.Exit(m.Run())
	}
	for i := range each {
		if err := Add(dir, "ADD", 100*(i%2), 3*time.Millisecond); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

// Processes that count at once, the first of which make the file, lose nothing.
func TestProcessesCountTogether(t *testing.T) {
	dir := t.TempDir()
	var all sync.WaitGroup
	for range children {
		all.Go(func() {
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), childEnv+"="+dir)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	all.Wait()
	got, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	const half = children * each / 2
	want := []Series{{Verb: "ADD", Code: 0, Sum: half * 3 * time.Millisecond}, {Verb: "ADD", Code: 100, Sum: half * 3 * time.Millisecond}}
	for i := range want {
		want[i].Buckets[2] = half // up to 4 ms
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != 1 {
		t.Errorf("want the file alone, got %v, %v", names, err)
	}
}

func TestCallsHaveTheirPlaces(t *testing.T) {
	dir := t.TempDir()
	for _, call := range []struct {
		verb string
		code int
		took time.Duration
	}{
		{"DEL", 0, 0}, {"DEL", 0, time.Millisecond}, {"DEL", 0, time.Millisecond + 1}, {"DEL", 0, time.Hour}, {"DEL", 0, -time.Second},
		{"CHECK", 104, 16 * time.Millisecond}, {"VERSION", 999, time.Millisecond},
	} {
		if err := Add(dir, call.verb, call.code, call.took); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	del := Series{Verb: "DEL", Sum: time.Hour + 2*time.Millisecond + 1}
	del.Buckets[0], del.Buckets[1], del.Buckets[buckets-1] = 3, 1, 1
	check := Series{Verb: "CHECK", Code: 104, Sum: 16 * time.Millisecond}
	check.Buckets[4] = 1
	other := Series{Verb: "other", Code: -1, Sum: time.Millisecond}
	other.Buckets[0] = 1
	if diff := cmp.Diff([]Series{del, check, other}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAFileThatIsNoneOfOursIsReplaced(t *testing.T) {
	for name, text := range map[string]string{"empty": "", "short": "calls", "other": strings.Repeat("x", fileSize), "long": strings.Repeat("x", fileSize+1)} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, File), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(dir); err == nil {
			t.Errorf("%s: want an error of the reader, got none", name)
		}
		if err := Add(dir, "ADD", 0, 0); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got, err := Read(dir); err != nil || len(got) != 1 {
			t.Errorf("%s: want the one call, got %v, %v", name, got, err)
		}
	}
}

// Nothing is made where there is no state, and nobody is sent elsewhere by a link.
func TestNoFileIsMadeWhereItShouldNotBe(t *testing.T) {
	dir := t.TempDir()
	if err := Add(filepath.Join(dir, "none"), "ADD", 0, 0); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("want %v, got %v", fs.ErrNotExist, err)
	}
	if got, err := Read(filepath.Join(dir, "none")); err != nil || got != nil {
		t.Errorf("want nothing, got %v, %v", got, err)
	}
	target := filepath.Join(dir, "target")
	if err := os.WriteFile(target, make([]byte, fileSize), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, filepath.Join(dir, File)); err != nil {
		t.Fatal(err)
	}
	if err := Add(dir, "ADD", 0, 0); err == nil {
		t.Error("want an error where the file is a link, got none")
	}
}

func BenchmarkAdd(b *testing.B) {
	dir := b.TempDir()
	for b.Loop() {
		if err := Add(dir, "ADD", 0, 70*time.Millisecond); err != nil {
			b.Fatal(err)
		}
	}
}
