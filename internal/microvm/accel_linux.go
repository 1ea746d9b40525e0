package microvm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Accel is how QEMU runs the guest's code.
type Accel string

// The accelerators.
const (
	TCG Accel = "tcg" // emulated: works everywhere, many times slower
	KVM Accel = "kvm"
)

func (a Accel) args() []string {
	if a == KVM {
		return []string{"-accel", "kvm", "-cpu", "host"}
	}
	return []string{"-accel", "tcg,thread=multi", "-cpu", "max"}
}

// kvmBootLimit is how long a guest may take under KVM to count: a real one needs less than a second. Hosts that hand out
// a /dev/kvm on which a guest stops half way (nested ones, some clouds') are found by it.
const kvmBootLimit = 8 * time.Second

// ChooseAccel gives KVM where this image really boots under it on this machine, else TCG, with the reason. The first call
// after a boot of the machine tries it, without a network card; the answer is kept in the cache.
func ChooseAccel(ctx context.Context, img Image, cacheDir string) (accel Accel, why string, err error) {
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return TCG, "no usable /dev/kvm: " + err.Error(), nil
	}
	_ = f.Close() // only whether it opens
	if cacheDir == "" {
		if cacheDir, err = DefaultCacheDir(); err != nil {
			return "", "", err
		}
	}
	key, err := probeKey(img)
	if err != nil {
		return "", "", err
	}
	file := filepath.Join(cacheDir, "kvm-probe")
	if b, err := os.ReadFile(file); err == nil {
		if rest, ok := strings.CutPrefix(string(b), key+"\n"); ok {
			return parseProbe(rest)
		}
	}
	answer := string(KVM) + "\na guest boots under it"
	if err := bootUnderKVM(ctx, img); err != nil {
		if ctx.Err() != nil {
			return "", "", ctx.Err()
		}
		answer = string(TCG) + "\n/dev/kvm is there and a guest does not boot under it"
	}
	if err := os.WriteFile(file, []byte(key+"\n"+answer), 0o644); err != nil {
		return "", "", err
	}
	return parseProbe(answer)
}

func parseProbe(s string) (Accel, string, error) {
	accel, why, _ := strings.Cut(s, "\n")
	if accel != string(KVM) && accel != string(TCG) {
		return "", "", fmt.Errorf("kept answer of the KVM probe: want kvm or tcg, got %q", accel)
	}
	return Accel(accel), why, nil
}

// probeKey says for what an answer holds: this boot of this machine, this image.
func probeKey(img Image) (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(string(boot) + img.Digest))
	return hex.EncodeToString(sum[:8]), nil
}

// bootUnderKVM boots the image with no network card. Its init finds no network configuration and says so: that it
// speaks at all is what is asked.
func bootUnderKVM(ctx context.Context, img Image) error {
	initrd, err := os.Open(img.Initrd)
	if err != nil {
		return err
	}
	defer initrd.Close()
	args := append([]string{
		qemuBinary, "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-machine", string(MicroVM), "-m", "192",
		"-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console", "-kernel", img.Kernel, "-initrd", "/proc/self/fd/3",
		"-append", "console=ttyS0 quiet panic=-1 rdinit=/init",
	}, KVM.args()...)
	p, err := startProcess("", args, []*os.File{initrd})
	if err != nil {
		return err
	}
	c := newConsole(p.stdin, p.stdout)
	ctx, cancel := context.WithTimeout(ctx, kvmBootLimit)
	defer cancel()
	_, err = c.waitForEvent(ctx)
	spoke := err != nil && !errors.Is(err, errGone) && ctx.Err() == nil
	serr := p.stop()
	c.wait()
	if serr != nil && !errors.Is(serr, unix.ESRCH) {
		return serr
	}
	if !spoke {
		return fmt.Errorf("boot under KVM: %w", err)
	}
	return nil
}
