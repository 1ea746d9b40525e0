// Command guest is init in the microVMs that tapir's quick start and tests boot, on a kernel of Debian's and nothing
// else: it loads the card's modules, configures the card from cloud-init's /network-config or from the kernel's own ip=
// argument, as a real guest does, and then serves the requests of package agentapi over the serial console.
//
// It must be process 1 of a machine of its own. Anywhere else it refuses to run.
package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/tapir-cni/tapir/internal/microvm/agentapi"
	"github.com/tapir-cni/tapir/internal/microvm/stream"
)

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "tapir-guest: this is the init of tapir's test guests; it runs as process 1 of a microVM only")
		os.Exit(2)
	}
	if err := run(); err != nil {
		// There is nobody to return to. The node reads this from the console.
		fmt.Println("tapir-guest:", err)
		powerOff()
	}
}

func run() error {
	if err := mountAll(); err != nil {
		return err
	}
	c, err := openConsole("/dev/ttyS0")
	if err != nil {
		return err
	}
	event, err := bringUp()
	if err != nil {
		return errors.Join(err, c.write(agentapi.Response{Error: err.Error()}))
	}
	// Kernel messages would cut into ours from here on; panics still pass. The level is the buffer's length.
	if _, err := unix.Klogctl(unix.SYSLOG_ACTION_CONSOLE_LEVEL, make([]byte, 1)); err != nil {
		return fmt.Errorf("quieten the console: %w", err)
	}
	l, err := net.Listen("tcp", fmt.Sprintf(":%d", stream.Port))
	if err != nil {
		return err
	}
	go func() {
		if err := stream.Serve(l); err != nil {
			fmt.Println("tapir-guest: serve transfers:", err)
		}
	}()
	if err := c.event(event); err != nil {
		return err
	}
	return newAgent(c, event.Info.IfName).serve()
}

func mountAll() error {
	for _, m := range []struct{ fstype, dir string }{
		{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/tmp"}, {"tmpfs", "/run"},
	} {
		if err := os.MkdirAll(m.dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.fstype, m.dir, m.fstype, 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("mount %s on %s: %w", m.fstype, m.dir, err)
		}
	}
	return nil
}

// bringUp loads the modules and configures the card.
func bringUp() (agentapi.Event, error) {
	if err := loadModules("/modules"); err != nil {
		return agentapi.Event{}, err
	}
	cmdline, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return agentapi.Event{}, err
	}
	source, card, err := configure("/network-config", string(cmdline))
	if err != nil {
		return agentapi.Event{}, err
	}
	if err := waitForDAD(card); err != nil {
		return agentapi.Event{}, err
	}
	info, err := readInfo(card)
	if err != nil {
		return agentapi.Event{}, err
	}
	return agentapi.Event{Ready: true, Source: source, Info: info}, nil
}

// loadModules inserts each file of dir in the order of their names.
func loadModules(dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.ko*"))
	if err != nil {
		return err
	}
	slices.Sort(files)
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		flags := 0
		if !strings.HasSuffix(file, ".ko") {
			flags = unix.MODULE_INIT_COMPRESSED_FILE
		}
		err = unix.FinitModule(int(f.Fd()), "", flags)
		_ = f.Close()
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("insert %s: %w", file, err)
		}
	}
	return nil
}

// configure applies the network-config of the file where there is one, else ip= of the kernel's command line, and gives
// which it was and the card's name.
func configure(file, cmdline string) (source, card string, err error) {
	if err := setUp("lo"); err != nil {
		return "", "", err
	}
	text, err := os.ReadFile(file)
	if err == nil {
		card, err = applyNetworkConfig(text)
		if err != nil {
			return "", "", fmt.Errorf("%s: %w", file, err)
		}
		return "network-config", card, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", "", err
	}
	line, ok := findIPLine(cmdline)
	if !ok {
		return "", "", fmt.Errorf("no network configuration: neither %s nor ip= on the kernel's command line", file)
	}
	c, err := parseIPLine(line)
	if err != nil {
		return "", "", err
	}
	card, err = c.apply()
	return "ip=", card, err
}

func applyNetworkConfig(text []byte) (card string, err error) {
	c, err := parseNetworkConfig(text)
	if err != nil {
		return "", err
	}
	return c.apply()
}

func powerOff() {
	unix.Sync()
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		fmt.Println("tapir-guest: power off:", err)
	}
}
