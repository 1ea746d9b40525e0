package microvm

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// NewestKernelPackage asks apt for the name of the series' newest cloud kernel, reading the package lists anew where they name none.
func NewestKernelPackage(ctx context.Context, series Series, progress func(string)) (string, error) {
	if series != Series61 && series != Series612 {
		return "", fmt.Errorf("kernel series: want %q or %q, got %q", Series61, Series612, series)
	}
	for try := range 2 {
		if try > 0 {
			progress("apt-get update")
			if err := AptUpdate(ctx); err != nil {
				return "", err
			}
		}
		out, err := run(ctx, "", "apt-cache", "search", "--names-only", `^linux-image-`+strings.ReplaceAll(string(series), ".", `\.`)+`.*-cloud-amd64$`)
		if err != nil {
			return "", fmt.Errorf("look for a cloud kernel %s: %w; the guests' kernel comes from Debian's archive, so this needs Debian 12 and apt", series, err)
		}
		if name, ok := newest(out, series); ok {
			return name, nil
		}
	}
	return "", fmt.Errorf("apt knows no linux-image-%s.*-cloud-amd64; enable Debian 12's main archive in its sources", series)
}

// newest picks the newest package out of apt-cache's "name - description" lines.
func newest(list string, series Series) (string, bool) {
	var names []string
	for line := range strings.Lines(list) {
		if name, _, ok := strings.Cut(line, " - "); ok {
			names = append(names, name)
		}
	}
	return LatestKernel(names, series)
}

// LatestKernel gives the newest of those names that are kernel packages of the series.
func LatestKernel(names []string, series Series) (string, bool) {
	pattern := packagePattern(series)
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !pattern.MatchString(name) })
	if len(names) == 0 {
		return "", false
	}
	return slices.MaxFunc(names, compareVersions), true
}

// DownloadPackage has apt-get put the package, whose hash it checks, into dir. Stale lists are read anew once.
func DownloadPackage(ctx context.Context, dir, name string) error {
	download := func() error {
		_, err := run(ctx, dir, "apt-get", "download", "-q", "-o", "APT::Sandbox::User=root", name)
		return err
	}
	err := download()
	if err == nil || ctx.Err() != nil {
		return err
	}
	if uerr := AptUpdate(ctx); uerr != nil {
		return fmt.Errorf("download %s: %w; and then %w", name, err, uerr)
	}
	if err := download(); err != nil {
		return fmt.Errorf("download %s: %w", name, err)
	}
	return nil
}

// AptUpdate reads the package lists anew.
func AptUpdate(ctx context.Context) error {
	if _, err := run(ctx, "", "apt-get", "update", "-q"); err != nil {
		return fmt.Errorf("read the package lists: %w", err)
	}
	return nil
}

// AptInstall installs Debian packages without asking.
func AptInstall(ctx context.Context, packages ...string) error {
	args := append([]string{"install", "-q", "-y", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=120"}, packages...)
	if _, err := run(ctx, "", "apt-get", args...); err != nil {
		return fmt.Errorf("install %s: %w", strings.Join(packages, " "), err)
	}
	return nil
}

// run gives the program's output; its error holds what the program said last.
func run(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
		return "", fmt.Errorf("%s %s: %w: %s", name, args[0], err, strings.Join(lines[max(0, len(lines)-3):], "; "))
	}
	return stdout.String(), nil
}
