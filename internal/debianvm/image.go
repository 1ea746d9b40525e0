// Package debianvm boots Debian 12 with a cloud kernel of choice under QEMU and runs one program in it: for kernels that this
// machine does not run, and for drivers that its own kernel lacks.
//
// The root file system is made by debootstrap from the mirror that apt is set up with, the kernel comes by apt, and both are
// kept in the cache. They are three read-only disks in the guest: root, modules, and the [Job]'s files as a bare tar archive. A
// guest has no network and leaves nothing behind.
package debianvm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tapir-cni/tapir/internal/microvm"
)

// suite is the release that the root file system is of.
const suite = "bookworm"

// basePackages are what a job can rely on, beside Debian's essential packages.
var basePackages = []string{"ethtool", "iproute2", "kmod", "nftables", "procps"}

// Options say what is to be booted.
type Options struct {
	Kernel   microvm.Series // default: 6.12
	Packages []string       // Debian packages beyond the base, with what they depend on
	CacheDir string         // default: debianvm beside the microVMs' cache
	Progress func(string)   // called before each step that takes time; may be nil
}

// Image is what a guest boots. Its files are in the cache and may serve several guests at once.
type Image struct {
	Kernel  string // path of vmlinuz
	Release string // of the kernel
	Modules string // path of an ext4 file system: lib/modules
	Root    string // path of an ext4 file system
	Initrd  string // path of the initramfs that mounts them
}

// Ensure gives the image of the newest kernel of the series, from the cache where it is there. It wants root, debootstrap,
// e2fsprogs and kmod, and apt's mirror for what is not in the cache.
func Ensure(ctx context.Context, o Options) (Image, error) {
	if err := o.defaults(); err != nil {
		return Image{}, err
	}
	if err := os.MkdirAll(o.CacheDir, 0o755); err != nil {
		return Image{}, err
	}
	unlock, err := microvm.LockCache(ctx, o.CacheDir, o.Progress)
	if err != nil {
		return Image{}, err
	}
	defer unlock()
	if err := removeHalfMade(o.CacheDir); err != nil {
		return Image{}, err
	}
	img, err := ensureKernel(ctx, o)
	if err != nil {
		return Image{}, err
	}
	img.Root, err = ensureRoot(ctx, o)
	return img, err
}

// What is being made has these names in the cache until it is whole.
const (
	rootInWork   = ".root-*"
	kernelInWork = ".kernel-*"
)

// removeHalfMade takes away what a process left that was killed while it held the cache's lock.
func removeHalfMade(dir string) error {
	for _, pattern := range []string{rootInWork, kernelInWork} {
		left, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return err
		}
		for _, path := range left {
			if err := os.RemoveAll(path); err != nil {
				return err
			}
		}
	}
	return nil
}

func (o *Options) defaults() error {
	if o.Kernel == "" {
		o.Kernel = microvm.Series612
	}
	if o.CacheDir == "" {
		dir, err := microvm.DefaultCacheDir()
		if err != nil {
			return err
		}
		o.CacheDir = filepath.Join(filepath.Dir(dir), "debianvm")
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	for _, p := range o.Packages {
		if p == "" || strings.ContainsAny(p, ", \n") {
			return fmt.Errorf("package: want the name of a Debian package, got %q", p)
		}
	}
	return nil
}

// packages are all packages that the root gets by name, in an order that does not depend on the caller's.
func (o *Options) packages() []string {
	all := slices.Concat(basePackages, o.Packages)
	slices.Sort(all)
	return slices.Compact(all)
}

// rootName names the root file system by what it is made of.
func rootName(packages []string) string {
	sum := sha256.Sum256([]byte(rootLayout + "\n" + suite + "\n" + strings.Join(packages, "\n")))
	return "root-" + hex.EncodeToString(sum[:8]) + ".img"
}

// ensureRoot gives the root file system with the packages, which it makes where the cache has none.
func ensureRoot(ctx context.Context, o Options) (string, error) {
	packages := o.packages()
	path := filepath.Join(o.CacheDir, rootName(packages))
	if _, err := os.Stat(path); err == nil || !errors.Is(err, os.ErrNotExist) {
		return path, err
	}
	mirror, err := aptMirror(ctx)
	if err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(o.CacheDir, rootInWork)
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	o.Progress("making a Debian 12 with " + strings.Join(packages, ", ") + "; it takes a minute or two, once")
	tree := filepath.Join(tmp, "root")
	if err := debootstrap(ctx, tree, mirror, packages); err != nil {
		return "", err
	}
	disk := filepath.Join(tmp, "root.img")
	if err := makeDisk(ctx, tree, disk, rootSize); err != nil {
		return "", err
	}
	return path, os.Rename(disk, path)
}
