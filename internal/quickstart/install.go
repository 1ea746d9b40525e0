package quickstart

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/tapir-cni/tapir/internal/microvm"
)

// findCommands says which of the project's own programs are not in dir.
func findCommands(dir string) error {
	var missing []string
	for _, name := range []string{"tapir", "tapir-ipam", "tapir-guest"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("look for the plugin's programs in %s: no %s; \"make build\" makes them", dir, strings.Join(missing, ", "))
	}
	return nil
}

// needs are the programs that the quick start runs, with the Debian package of each.
var needs = []struct{ program, pkg string }{
	{"qemu-system-x86_64", "qemu-system-x86"},
	{"/bin/busybox", "busybox-static"},
}

// installMissing installs the Debian packages of programs that are not there.
func installMissing(ctx context.Context, p progress) error {
	var packages []string
	for _, n := range needs {
		if _, err := exec.LookPath(n.program); err != nil {
			packages = append(packages, n.pkg)
		}
	}
	if len(packages) == 0 {
		return nil
	}
	names := strings.Join(packages, " ")
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("install %s: this is not Debian (no apt-get); install %s by hand and run again", names, names)
	}
	p.say("installing %s", names)
	stop := heartbeat(p, "still installing")
	defer stop()
	err := microvm.AptInstall(ctx, packages...)
	if err == nil || ctx.Err() != nil {
		return err
	}
	p.say("reading the package lists anew")
	if uerr := microvm.AptUpdate(ctx); uerr != nil {
		return errors.Join(err, uerr)
	}
	return microvm.AptInstall(ctx, packages...)
}

// heartbeat says every ten seconds that something goes on, until it is stopped.
func heartbeat(p progress, what string) (stop func()) {
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(10 * time.Second):
				p.say("%s", what)
			}
		}
	}()
	return func() { close(done) }
}
