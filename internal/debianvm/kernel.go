package debianvm

import (
	"context"
	"crypto/sha256"
	_ "embed" // the guest's init
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/tapir-cni/tapir/internal/microvm"
)

// diskModules are what the initramfs loads to reach the disks, in this order. 6.12 has all but the last built in.
var diskModules = []string{
	"virtio_ring", "virtio", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci", "virtio_blk",
}

//go:embed init.sh
var initScript []byte

// busybox is the initramfs's only program.
const busybox = "/bin/busybox"

// ensureKernel gives the newest cloud kernel of the series that apt knows, and its initramfs. Where apt knows none, offline say,
// the newest in the cache serves.
func ensureKernel(ctx context.Context, o Options) (Image, error) {
	name, err := microvm.NewestKernelPackage(ctx, o.Kernel, o.Progress)
	if ctx.Err() != nil {
		return Image{}, context.Cause(ctx)
	}
	if err != nil {
		cached, ok := newestCached(o.CacheDir, o.Kernel)
		if !ok {
			return Image{}, err
		}
		o.Progress(fmt.Sprintf("%s from the cache; %v", cached, err))
		name = cached
	}
	dir := filepath.Join(o.CacheDir, name)
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		if err := unpackKernel(ctx, o, name, dir); err != nil {
			return Image{}, fmt.Errorf("unpack %s: %w", name, err)
		}
	} else if err != nil {
		return Image{}, err
	}
	release, err := os.ReadFile(filepath.Join(dir, "release"))
	if err != nil {
		return Image{}, err
	}
	img := Image{
		Release: strings.TrimSpace(string(release)), Kernel: filepath.Join(dir, "vmlinuz"), Modules: filepath.Join(dir, "modules.img"),
	}
	img.Initrd, err = ensureInitrd(ctx, dir)
	return img, err
}

func newestCached(dir string, series microvm.Series) (string, bool) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", false
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return microvm.LatestKernel(names, series)
}

// unpackKernel downloads a kernel package and leaves in dir: vmlinuz, release, the modules' file system, and the disks' modules.
func unpackKernel(ctx context.Context, o Options, name, dir string) error {
	tmp, err := os.MkdirTemp(o.CacheDir, kernelInWork)
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	o.Progress("downloading " + name)
	if err := microvm.DownloadPackage(ctx, tmp, name); err != nil {
		return err
	}
	debs, err := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if err != nil || len(debs) != 1 {
		return fmt.Errorf("want one package file, got %d", len(debs))
	}
	tree, done := filepath.Join(tmp, "tree"), filepath.Join(tmp, "done")
	if _, err := run(ctx, "dpkg-deb", "-x", debs[0], tree); err != nil {
		return err
	}
	if err := os.Mkdir(done, 0o755); err != nil {
		return err
	}
	kernels, err := filepath.Glob(filepath.Join(tree, "boot", "vmlinuz-*"))
	if err != nil || len(kernels) != 1 {
		return fmt.Errorf("want one kernel in the package, got %d", len(kernels))
	}
	release := strings.TrimPrefix(filepath.Base(kernels[0]), "vmlinuz-")
	if err := os.WriteFile(filepath.Join(done, "release"), []byte(release+"\n"), 0o644); err != nil {
		return err
	}
	if err := os.Rename(kernels[0], filepath.Join(done, "vmlinuz")); err != nil {
		return err
	}
	if _, err := run(ctx, "depmod", "-b", tree, release); err != nil {
		return err
	}
	modules := filepath.Join(tree, "lib", "modules")
	if err := takeModules(filepath.Join(modules, release), done); err != nil {
		return err
	}
	if err := makeDisk(ctx, modules, filepath.Join(done, "modules.img"), modulesSize); err != nil {
		return err
	}
	return os.Rename(done, dir) // whole or not at all
}

// takeModules copies the disks' modules that the kernel has not built in, compressed or not.
func takeModules(from, to string) error {
	return filepath.WalkDir(from, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		module, _, ok := strings.Cut(d.Name(), ".ko")
		if !ok || moduleOrder(module) < 0 {
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, d.Name()), data, 0o644)
	})
}

func moduleOrder(name string) int {
	for i, m := range diskModules {
		if m == strings.ReplaceAll(name, "-", "_") {
			return i
		}
	}
	return -1
}

// ensureInitrd gives the initramfs with the modules in dir. Its parts name it, so that a changed init makes a new one.
func ensureInitrd(ctx context.Context, dir string) (string, error) {
	shell, err := os.ReadFile(busybox)
	if err != nil {
		return "", fmt.Errorf("%w; install busybox-static", err)
	}
	var b strings.Builder
	c := microvm.NewCPIO(&b)
	for _, d := range []string{"bin", "modules", "proc", "sys", "dev", "root"} {
		c.Dir(d)
	}
	c.File("init", 0o755, initScript)
	c.File("bin/busybox", 0o755, shell)
	files, err := filepath.Glob(filepath.Join(dir, "*.ko*"))
	if err != nil {
		return "", err
	}
	for _, f := range files {
		data, err := readModule(ctx, f)
		if err != nil {
			return "", err
		}
		name, _, _ := strings.Cut(filepath.Base(f), ".ko")
		c.File(fmt.Sprintf("modules/%02d-%s.ko", moduleOrder(name), name), 0o644, data)
	}
	if err := c.Close(); err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(b.String()))
	path := filepath.Join(dir, "initrd-"+hex.EncodeToString(sum[:8]))
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.WriteFile(path+".tmp", []byte(b.String()), 0o644); err != nil {
		return "", err
	}
	return path, os.Rename(path+".tmp", path)
}

// readModule reads a module as insmod of busybox wants it: not compressed.
func readModule(ctx context.Context, path string) ([]byte, error) {
	if strings.HasSuffix(path, ".xz") {
		out, err := run(ctx, "xz", "-dc", path)
		return []byte(out), err
	}
	return os.ReadFile(path)
}
