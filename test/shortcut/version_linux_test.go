package shortcut_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// otherVersion builds a tapirctl with programs of another version: the same with a few bytes behind, which a loader does not
// look at. It goes on meanwhile; the function waits for the path.
func otherVersion(t *testing.T) func() string {
	t.Helper()
	goTool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("needs the go command, to build another version")
	}
	root, err := filepath.Abs("../..")
	check(t, err)
	object, dir := filepath.Join(root, "xdp", "shortcut_bpfel.o"), t.TempDir()
	programs, err := os.ReadFile(object)
	check(t, err)
	check(t, os.WriteFile(filepath.Join(dir, "other.o"), append(programs, "another version"...), 0o600))
	overlay := fmt.Sprintf(`{"Replace": {%q: %q}}`, object, filepath.Join(dir, "other.o"))
	check(t, os.WriteFile(filepath.Join(dir, "overlay.json"), []byte(overlay), 0o600))
	build := exec.Command(goTool, "build", "-trimpath", "-overlay", filepath.Join(dir, "overlay.json"), "-o", filepath.Join(dir, "tapirctl"), "./cmd/tapirctl")
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	done := make(chan error, 1)
	go func() {
		out, err := build.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("build another version: %w: %s", err, out)
		}
		done <- err
	}()
	wait := sync.OnceValue(func() error { return <-done })
	t.Cleanup(func() { _ = wait() }) // before the folder goes
	return func() string {
		check(t, wait())
		return filepath.Join(dir, "tapirctl")
	}
}
