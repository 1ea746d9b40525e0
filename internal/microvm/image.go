package microvm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Image is what a microVM boots.
type Image struct {
	Kernel  string // path of vmlinuz
	Initrd  string // path of the initramfs, which a network-config may follow
	Release string // of the kernel
	Digest  string // of kernel release, modules, busybox and agent: what the image was built from
}

// ImageOptions say where things are and which kernel is wanted.
type ImageOptions struct {
	CacheDir string // default: see DefaultCacheDir
	Kernel   Series // default: 6.1
	Agent    string // path of the guest agent; default: tapir-guest beside this program
	Busybox  string // path of a static busybox; default: /bin/busybox
}

// DefaultCacheDir is where kernels and images are kept: $TAPIR_CACHE_DIR, or tapir/microvm in the user's cache directory.
func DefaultCacheDir() (string, error) {
	if dir := os.Getenv("TAPIR_CACHE_DIR"); dir != "" {
		return dir, nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a cache directory: %w; set TAPIR_CACHE_DIR", err)
	}
	return filepath.Join(dir, "tapir", "microvm"), nil
}

// EnsureImage gives the image of the newest kernel of the series with this agent and busybox, from the cache where it is
// there. progress is called before each step that takes time; it may be nil. What an image was built from names its file,
// so that a new agent or kernel makes a new one.
func EnsureImage(ctx context.Context, o ImageOptions, progress func(string)) (Image, error) {
	if progress == nil {
		progress = func(string) {}
	}
	if err := o.defaults(); err != nil {
		return Image{}, err
	}
	if err := os.MkdirAll(o.CacheDir, 0o755); err != nil {
		return Image{}, err
	}
	unlock, err := LockCache(ctx, o.CacheDir, progress)
	if err != nil {
		return Image{}, err
	}
	defer unlock()
	k, err := ensureKernel(ctx, o.CacheDir, o.Kernel, progress)
	if err != nil {
		return Image{}, err
	}
	initrd, err := buildInitramfs(k, o)
	if err != nil {
		return Image{}, err
	}
	sum := sha256.Sum256(append([]byte(k.release+"\n"), initrd...))
	digest := hex.EncodeToString(sum[:8])
	img := Image{
		Kernel: k.vmlinuz(), Release: k.release, Digest: digest,
		Initrd: filepath.Join(o.CacheDir, "initrd-"+digest+".cpio"),
	}
	if _, err := os.Stat(img.Initrd); err == nil {
		return img, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return Image{}, err
	}
	progress("building the guests' image")
	return img, writeImage(img.Initrd, initrd)
}

// LockCache waits until no other process fills the cache: two apt-get update at once would fail each other.
func LockCache(ctx context.Context, dir string, progress func(string)) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for said := false; ; said = true {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil // which unlocks
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close())
		}
		if !said {
			progress("waiting for another process that fills the cache")
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), f.Close())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (o *ImageOptions) defaults() error {
	if o.CacheDir == "" {
		dir, err := DefaultCacheDir()
		if err != nil {
			return err
		}
		o.CacheDir = dir
	}
	if o.Kernel == "" {
		o.Kernel = Series61
	}
	if o.Busybox == "" {
		o.Busybox = "/bin/busybox"
	}
	if o.Agent == "" {
		exe, err := os.Executable()
		if err != nil {
			return err
		}
		o.Agent = filepath.Join(filepath.Dir(exe), "tapir-guest")
	}
	return nil
}

func buildInitramfs(k kernel, o ImageOptions) ([]byte, error) {
	agent, err := readStatic(o.Agent, `"make build" makes it`)
	if err != nil {
		return nil, err
	}
	busybox, err := readStatic(o.Busybox, "install busybox-static")
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	c := NewCPIO(&b)
	for _, dir := range []string{"bin", "modules", "proc", "sys", "dev", "tmp", "run", "etc"} {
		c.Dir(dir)
	}
	c.File("init", 0o755, agent)
	c.File("bin/busybox", 0o755, busybox)
	for i, m := range k.modules {
		data, err := os.ReadFile(filepath.Join(k.dir, m))
		if err != nil {
			return nil, err
		}
		c.File(fmt.Sprintf("modules/%02d-%s", i, m), 0o644, data)
	}
	if err := c.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// readStatic reads an ELF program that needs no interpreter: the guest has no library.
func readStatic(path, hint string) ([]byte, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%w; %s", err, hint)
	}
	if !bytes.HasPrefix(data, []byte("\x7fELF")) || bytes.Contains(data[:min(len(data), 4096)], []byte("ld-linux")) {
		return nil, fmt.Errorf("%s is not a static ELF program, and the guest has no libraries; %s", path, hint)
	}
	return data, nil
}

// imageLife is how long an image that nothing was built from since is kept.
const imageLife = 7 * 24 * time.Hour

// writeImage puts the image in place whole and removes old ones, of agents that are gone.
func writeImage(path string, data []byte) error {
	dir := filepath.Dir(path)
	tmp, err := os.CreateTemp(dir, ".initrd-*")
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	if err = errors.Join(err, tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	old, err := filepath.Glob(filepath.Join(dir, "initrd-*.cpio"))
	if err != nil {
		return err
	}
	for _, f := range old {
		if i, err := os.Stat(f); err == nil && time.Since(i.ModTime()) > imageLife {
			_ = os.Remove(f) // it only takes room
		}
	}
	return nil
}
