package microvm

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Series names a line of Debian's cloud kernels.
type Series string

// The series that Debian 12 carries. 6.1 is its own, 6.12 comes from backports-like updates; 6.1 has no tcx.
const (
	Series61  Series = "6.1"
	Series612 Series = "6.12"
)

// modules are the virtio network card's, in the order in which they must be loaded; each needs those before it. 6.12 has
// the first of them built in.
var modules = []string{
	"virtio_ring", "virtio", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci", "virtio_mmio",
	"failover", "net_failover", "virtio_net",
}

// kernel is an unpacked kernel package.
type kernel struct {
	dir     string   // holds vmlinuz and the modules
	release string   // 6.1.0-57-cloud-amd64
	modules []string // file names in dir, in load order
}

// ensureKernel gives the newest cloud kernel of the series that apt knows, downloading and unpacking its package into
// cache where it is not there. Without a package list the newest one in the cache serves.
func ensureKernel(ctx context.Context, cache string, series Series, progress func(string)) (kernel, error) {
	name, err := NewestKernelPackage(ctx, series, progress)
	if ctx.Err() != nil {
		return kernel{}, ctx.Err()
	}
	if err != nil {
		if k, ok := newestCached(cache, series); ok {
			progress(fmt.Sprintf("kernel %s from the cache; %v", k.release, err))
			return k, nil
		}
		return kernel{}, err
	}
	dir := filepath.Join(cache, name)
	if k, err := openKernel(dir); err == nil {
		return k, nil
	}
	progress("downloading " + name)
	tmp, err := os.MkdirTemp(cache, ".kernel-*")
	if err != nil {
		return kernel{}, err
	}
	defer os.RemoveAll(tmp)
	if err := DownloadPackage(ctx, tmp, name); err != nil {
		return kernel{}, err
	}
	debs, err := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if err != nil || len(debs) != 1 {
		return kernel{}, fmt.Errorf("download %s: want one package file, got %d", name, len(debs))
	}
	progress("unpacking " + filepath.Base(debs[0]))
	if err := unpackKernel(ctx, debs[0], tmp); err != nil {
		return kernel{}, fmt.Errorf("unpack %s: %w", name, err)
	}
	if err := os.Remove(debs[0]); err != nil {
		return kernel{}, err
	}
	if err := os.Chmod(tmp, 0o755); err != nil {
		return kernel{}, err
	}
	// Renamed into place when it is whole; somebody else may have been faster.
	if err := os.Rename(tmp, dir); err != nil && !errors.Is(err, os.ErrExist) {
		if _, err2 := openKernel(dir); err2 != nil {
			return kernel{}, errors.Join(err, err2)
		}
	}
	return openKernel(dir)
}

// openKernel reads what unpackKernel left in dir.
func openKernel(dir string) (kernel, error) {
	release, err := os.ReadFile(filepath.Join(dir, "release"))
	if err != nil {
		return kernel{}, err
	}
	k := kernel{dir: dir, release: strings.TrimSpace(string(release))}
	if _, err := os.Stat(k.vmlinuz()); err != nil {
		return kernel{}, err
	}
	for _, m := range modules {
		found, err := filepath.Glob(filepath.Join(dir, m+".ko*"))
		if err != nil {
			return kernel{}, err
		}
		for _, f := range found {
			k.modules = append(k.modules, filepath.Base(f))
		}
	}
	if !slices.ContainsFunc(k.modules, func(m string) bool { return strings.HasPrefix(m, "virtio_net.") }) {
		return kernel{}, fmt.Errorf("%s: it holds no virtio_net module", dir)
	}
	return k, nil
}

func (k kernel) vmlinuz() string { return filepath.Join(k.dir, "vmlinuz") }

// unpackKernel takes the kernel and the modules out of a package. dpkg-deb reads each compression that Debian uses.
func unpackKernel(ctx context.Context, deb, dir string) error {
	cmd := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", deb)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	terr := takeFromTar(tar.NewReader(out), dir)
	_, cerr := io.Copy(io.Discard, out)
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("dpkg-deb: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return errors.Join(terr, cerr)
}

func takeFromTar(r *tar.Reader, dir string) error {
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		base := path.Base(h.Name)
		name := ""
		if release, ok := strings.CutPrefix(base, "vmlinuz-"); ok {
			name = "vmlinuz"
			if err := os.WriteFile(filepath.Join(dir, "release"), []byte(release+"\n"), 0o644); err != nil {
				return err
			}
		} else if module, _, ok := strings.Cut(base, ".ko"); ok && slices.Contains(modules, strings.ReplaceAll(module, "-", "_")) {
			name = base
		}
		if name == "" || h.Typeflag != tar.TypeReg {
			continue
		}
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, r)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
}

// newestCached gives the newest unpacked kernel of the series.
func newestCached(cache string, series Series) (kernel, bool) {
	entries, err := os.ReadDir(cache)
	if err != nil {
		return kernel{}, false
	}
	var names []string
	for _, e := range entries {
		if packagePattern(series).MatchString(e.Name()) {
			names = append(names, e.Name())
		}
	}
	slices.SortFunc(names, compareVersions)
	for _, name := range slices.Backward(names) {
		if k, err := openKernel(filepath.Join(cache, name)); err == nil {
			return k, true
		}
	}
	return kernel{}, false
}

func packagePattern(series Series) *regexp.Regexp {
	return regexp.MustCompile(`^linux-image-` + regexp.QuoteMeta(string(series)) + `\.[0-9][0-9a-z.+-]*-cloud-amd64$`)
}

// compareVersions orders names by the numbers in them.
func compareVersions(a, b string) int {
	return slices.Compare(numbers(a), numbers(b))
}

var digits = regexp.MustCompile(`[0-9]+`)

func numbers(s string) []int {
	var out []int
	for _, d := range digits.FindAllString(s, -1) {
		n, _ := strconv.Atoi(d)
		out = append(out, n)
	}
	return out
}
