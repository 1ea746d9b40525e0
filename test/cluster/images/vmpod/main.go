// Command vmpod is the container of a microVM pod: it boots a guest on the pod's TAP with the node's QEMU, under "tapirctl exec", and ends when
// QEMU does or on SIGTERM.
//
//	vmpod -host DIR -kernel FILE -initrd FILE -tapirctl FILE
//
// DIR is where the node's root is mounted; the files are the node's.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"github.com/tapir-cni/tapir/internal/guestconfig"
	"github.com/tapir-cni/tapir/internal/microvm"
	"github.com/tapir-cni/tapir/state"
	"golang.org/x/sys/unix"
)

func main() {
	host := flag.String("host", "/host", "`folder` where the node's root is mounted")
	tapirctl := flag.String("tapirctl", "", "`program` on the node")
	var image microvm.Image
	flag.StringVar(&image.Kernel, "kernel", "", "`file` on the node")
	flag.StringVar(&image.Initrd, "initrd", "", "`file` on the node")
	flag.Parse()
	if err := run(*host, *tapirctl, image); err != nil {
		fmt.Fprintln(os.Stderr, "vmpod:", err)
		os.Exit(1)
	}
}

func run(host, tapirctl string, image microvm.Image) error {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	key, err := attachment() // before the chroot: the container's sysfs shows the pod's devices
	if err != nil {
		return err
	}
	if err := errors.Join(unix.Chroot(host), unix.Chdir("/"), os.Setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")); err != nil {
		return err
	}
	var record state.Attachment
	err = state.New(state.Config{}).View(ctx, func(tx *state.Tx) error {
		known := false
		if record, known, err = tx.Attachment(key); err == nil && !known {
			err = fmt.Errorf("%s is not recorded", key)
		}
		return err
	})
	if err != nil {
		return err
	}
	guest, err := guestconfig.FromAttachment(record)
	if err != nil {
		return err
	}
	fmt.Printf("the guest's power is on at %d ms\n", time.Now().UnixMilli())
	vm, err := microvm.Start(ctx, microvm.Config{Guest: guest, Image: image, Launcher: []string{tapirctl, "exec", "--"}})
	if err != nil {
		return err
	}
	fmt.Printf("the guest is up after %s\n", vm.BootTime)
	err = vm.Wait(ctx)
	if ctx.Err() != nil { // told to end
		return vm.Stop()
	}
	return errors.Join(err, errors.New("QEMU ended: "+vm.Console()))
}

// attachment is the one whose TAP is in this network namespace: its name is the TAP's alias.
func attachment() (state.Key, error) {
	files, err := filepath.Glob("/sys/class/net/*/tun_flags")
	if err != nil {
		return state.Key{}, err
	}
	for _, file := range files {
		alias, err := os.ReadFile(filepath.Join(filepath.Dir(file), "ifalias"))
		if err != nil {
			return state.Key{}, err
		}
		if key, ok := state.ParseAlias(strings.TrimSpace(string(alias))); ok {
			return key, nil
		}
	}
	return state.Key{}, fmt.Errorf("no TAP of tapir among %q", files)
}
