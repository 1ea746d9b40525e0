package version

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The variable's path stands in the Makefile as text, and the linker ignores a -X that names nothing.
func TestLinkerSetsVersion(t *testing.T) {
	const want = "v0.0.0-linked"
	bin := filepath.Join(t.TempDir(), "print")
	build := exec.Command("go", "build", "-o", bin,
		"-ldflags=-X github.com/tapir-cni/tapir/internal/version.version="+want, "./testdata/print")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build testdata/print: %v\n%s", err, out)
	}
	out, err := exec.Command(bin).Output()
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(string(out)); got != want {
		t.Errorf("version: want %q, got %q", want, got)
	}
}

func TestWithoutLinkerVersionIsNotEmpty(t *testing.T) {
	if String() == "" {
		t.Error("version is empty")
	}
}
