package debianvm

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// rootLayout changes where the way in which a root is made does, so that older ones are not used.
const rootLayout = "1"

// Sizes of the file systems. Their files are sparse: what is not used takes no room.
const (
	rootSize    = "3G"
	modulesSize = "512M"
)

// aptMirror gives the mirror from which apt takes the suite's main packages.
func aptMirror(ctx context.Context) (string, error) {
	out, err := run(ctx, "apt-get", "indextargets", "--format", "$(CODENAME) $(COMPONENT) $(REPO_URI)", "Created-By: Packages")
	if err != nil {
		return "", fmt.Errorf("ask apt for its mirror: %w", err)
	}
	if mirror, ok := mirrorOf(out); ok {
		return mirror, nil
	}
	return "", fmt.Errorf("apt knows no mirror of %s main; a guest's Debian comes from there, so add it to apt's sources", suite)
}

// mirrorOf finds the suite's main component in lines of codename, component and URI.
func mirrorOf(list string) (string, bool) {
	for line := range strings.Lines(list) {
		fields := strings.Fields(line)
		if len(fields) == 3 && fields[0] == suite && fields[1] == "main" {
			return fields[2], true
		}
	}
	return "", false
}

// debootstrap makes a Debian in dir. It runs in a mount namespace of its own: what it mounts is gone with it, however it ends.
func debootstrap(ctx context.Context, dir, mirror string, packages []string) error {
	cmd := command(ctx, "debootstrap", "--variant=minbase", "--include="+strings.Join(packages, ","), suite, dir, mirror)
	cmd.SysProcAttr.Unshareflags = unix.CLONE_NEWNS
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("debootstrap %s: %w: %s", suite, explain(ctx, err), last(out))
	}
	// Not read in the guest, and a third of the whole.
	for _, waste := range []string{"usr/share/doc", "usr/share/man", "usr/share/locale", "var/cache/apt", "var/lib/apt/lists", "usr/include"} {
		if err := os.RemoveAll(filepath.Join(dir, waste)); err != nil {
			return err
		}
	}
	return os.MkdirAll(filepath.Join(dir, "usr/lib/modules"), 0o755) // where the guest mounts them
}

// makeDisk writes an ext4 file system with the tree's files.
func makeDisk(ctx context.Context, tree, path, size string) error {
	if _, err := run(ctx, "mke2fs", "-q", "-F", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-d", tree, path, size); err != nil {
		return fmt.Errorf("make a file system: %w", err)
	}
	return nil
}

// run gives the program's output; its error holds what the program said last.
func run(ctx context.Context, name string, args ...string) (string, error) {
	cmd := command(ctx, name, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", name, explain(ctx, err), last(stderr.Bytes()))
	}
	return stdout.String(), nil
}

// command is a program that ends, with all that it started, when ctx does.
func command(ctx context.Context, name string, args ...string) *exec.Cmd {
	path, err := exec.LookPath(name)
	for _, sbin := range []string{"/usr/sbin", "/sbin"} { // which a user's PATH may lack
		if err != nil {
			path, err = exec.LookPath(filepath.Join(sbin, name))
		}
	}
	if err != nil {
		path = name // which fails with the right words
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive", "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// explain prefers the reason of a kill to the kill.
func explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// last is the end of what a program said, on one line.
func last(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return strings.Join(lines[max(0, len(lines)-3):], "; ")
}
