// Package microvm boots small real virtual machines on TAPs that exist already, for the quick start and the tests: QEMU,
// a Debian cloud kernel and an init of tapir's own (package guest) that answers over the serial console.
//
// A VM opens its TAP by name, inside the netns where the TAP is, with exactly the arguments that package guestconfig
// gives to users, and its guest is configured from guestconfig's output alone.
package microvm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tapir-cni/tapir/internal/guestconfig"
	"github.com/tapir-cni/tapir/internal/microvm/agentapi"
)

// Machine is a QEMU machine type.
type Machine string

// The machines. The zero value means MicroVM under KVM and Q35 under TCG, whose clocks an emulated guest can trust.
const (
	MicroVM Machine = "microvm" // virtio-mmio, no PCI: the nearest that QEMU has to Firecracker
	Q35     Machine = "q35"     // PCI
)

// GuestSource is what the guest configures its card from.
type GuestSource string

// The sources. The zero value means NetworkConfig.
const (
	NetworkConfig GuestSource = "network-config" // cloud-init, version 2
	IPLine        GuestSource = "ip="            // the kernel's boot argument: IPv4 only
)

// Config is one microVM. Guest and Image are needed, all else has a default.
type Config struct {
	Name     string // in errors; default: the TAP's name
	Guest    guestconfig.Guest
	Netns    string // path of the netns in which QEMU runs; default: the Guest's
	Image    Image
	Accel    Accel         // default: TCG; see [ProbeKVM]
	VCPUs    int           // default: one for each queue pair
	MemoryMB int           // default: 192
	Machine  Machine       // default: MicroVM under KVM, Q35 under TCG
	Source   GuestSource   // default: NetworkConfig
	Timeout  time.Duration // for the boot; default: 60 s

	// Launcher is what QEMU is started by, "tapirctl exec --" say: the words before QEMU's own. It runs in Netns, and [VM.Stop] kills it
	// alone: what stays QEMU's parent must see to its end.
	Launcher []string
	// Netdev is the value of QEMU's -netdev, with "id=net0". Default: what opens the Guest's TAP by name.
	Netdev string
}

// VM is a running microVM. Stop it.
type VM struct {
	Event    agentapi.Event // how the guest came up
	BootTime time.Duration  // from the start of QEMU to the guest's first message

	name    string
	console *console
	process *process
	cmdline []string
}

// Start boots a microVM and returns when its guest is configured and answers. The QEMU process runs in the netns as a
// child of this process and dies with it. On an error nothing is left, and the error holds the end of the console.
func Start(ctx context.Context, c Config) (*VM, error) {
	c.defaults()
	args, files, err := c.qemuArgs()
	if err != nil {
		return nil, fmt.Errorf("microVM %s: %w", c.Name, err)
	}
	defer closeAll(files)
	vm := &VM{name: c.Name, cmdline: slices.Concat(c.Launcher, []string{qemuBinary}, args)}
	start := time.Now()
	vm.process, err = startProcess(c.Netns, vm.cmdline, files)
	if err != nil {
		return nil, fmt.Errorf("microVM %s: %w", c.Name, err)
	}
	vm.console = newConsole(vm.process.stdin, vm.process.stdout)
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	vm.Event, err = vm.console.waitForEvent(ctx)
	vm.BootTime = time.Since(start)
	if err != nil {
		stopErr := vm.Stop() // first: then all that QEMU said has been read
		err = vm.explain(fmt.Errorf("boot after %s: %w", vm.BootTime.Round(time.Millisecond), err))
		return nil, errors.Join(err, stopErr)
	}
	return vm, nil
}

const qemuBinary = "qemu-system-x86_64"

func (c *Config) defaults() {
	if c.Name == "" {
		c.Name = c.Guest.TAP
	}
	if c.Netns == "" {
		c.Netns = c.Guest.Netns
	}
	if c.Accel == "" {
		c.Accel = TCG
	}
	if c.VCPUs == 0 {
		c.VCPUs = c.Guest.MinVCPUs()
	}
	if c.MemoryMB == 0 {
		c.MemoryMB = 192
	}
	if c.Machine == "" && c.Accel == KVM {
		c.Machine = MicroVM
	} else if c.Machine == "" {
		c.Machine = Q35
	}
	if c.Source == "" {
		c.Source = NetworkConfig
	}
	if c.Timeout == 0 {
		c.Timeout = time.Minute
	}
}

// qemuArgs gives QEMU's arguments and the files that they speak of as /proc/self/fd/3 and up.
func (c *Config) qemuArgs() ([]string, []*os.File, error) {
	bus := guestconfig.BusMMIO
	if c.Machine == Q35 {
		bus = guestconfig.BusPCI
	}
	net, err := c.Guest.QEMU(guestconfig.QEMUOptions{Bus: bus})
	if err != nil {
		return nil, nil, err
	}
	if at := slices.Index(net, "-netdev"); c.Netdev != "" {
		net[at+1] = c.Netdev
	}
	boot := []string{"console=ttyS0", "quiet", "loglevel=3", "panic=-1", "mitigations=off", "random.trust_cpu=on", "rdinit=/init"}
	if c.Machine == MicroVM && c.Accel == TCG {
		boot = append(boot, tscArg()...)
	}
	var line, text string
	switch c.Source {
	case IPLine:
		line, err = c.Guest.IPLine(guestconfig.IPLineOptions{})
		boot = append(boot, line)
	case NetworkConfig:
		text, err = c.Guest.NetworkConfig()
	default:
		err = fmt.Errorf("source: want %q or %q, got %q", NetworkConfig, IPLine, c.Source)
	}
	if err != nil {
		return nil, nil, err
	}
	initrd, err := c.initrd([]byte(text))
	if err != nil {
		return nil, nil, err
	}
	args := slices.Concat([]string{
		"-name", "tapir-" + c.Name, "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
		"-machine", string(c.Machine), "-m", strconv.Itoa(c.MemoryMB), "-smp", strconv.Itoa(c.VCPUs),
		"-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console",
		"-kernel", c.Image.Kernel, "-initrd", "/proc/self/fd/3", "-append", strings.Join(boot, " "),
	}, c.Accel.args(), net)
	return args, []*os.File{initrd}, nil
}

// tscArg tells the guest's kernel the frequency of its TSC, which under TCG is this CPU's. The machine microvm has no HPET
// and no ACPI timer, so that the kernel can measure it against the PIT alone; on a busy node that fails, and a kernel
// without any clock hangs before its first line (measured: 5 of 6 boots at a load of 6, none of 12 with the argument).
func tscArg() []string {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(b)) {
		key, value, _ := strings.Cut(line, ":")
		if strings.TrimSpace(key) != "cpu MHz" {
			continue
		}
		if mhz, err := strconv.ParseFloat(strings.TrimSpace(value), 64); err == nil && mhz > 0 {
			return []string{"tsc_early_khz=" + strconv.Itoa(int(mhz*1000))}
		}
	}
	return nil
}

// initrd gives the image followed by an archive with the guest's network-config, in memory: no file is left behind.
func (c *Config) initrd(networkConfig []byte) (*os.File, error) {
	image, err := os.ReadFile(c.Image.Initrd)
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("initrd", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create a file in memory: %w", err)
	}
	f := os.NewFile(uintptr(fd), "initrd")
	_, err = f.Write(image)
	if err == nil && len(networkConfig) > 0 {
		w := NewCPIO(f)
		w.File("network-config", 0o644, networkConfig)
		err = w.Close()
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// CommandLine is QEMU's, as it was started.
func (vm *VM) CommandLine() []string { return slices.Clone(vm.cmdline) }

// Pid is QEMU's process, or the Launcher's where that stays.
func (vm *VM) Pid() int { return vm.process.cmd.Process.Pid }

// Console is what the guest's kernel and QEMU have said so far, the last 64 KiB of it.
func (vm *VM) Console() string { return vm.console.log() + vm.process.stderr.String() }

// explain adds what the console and QEMU said last to an error.
func (vm *VM) explain(err error) error {
	said := strings.TrimSpace(vm.Console())
	lines := strings.Split(said, "\n")
	if said == "" {
		return fmt.Errorf("microVM %s: %w; its console is empty", vm.name, err)
	}
	return fmt.Errorf("microVM %s: %w; its console ends\n\t%s", vm.name, err,
		strings.Join(lines[max(0, len(lines)-12):], "\n\t"))
}

// Stop kills the QEMU process and waits for its end. It may be called more than once.
func (vm *VM) Stop() error {
	err := vm.process.stop()
	vm.console.wait()
	return err
}

// Wait returns when QEMU has ended by itself, after a [VM.PowerOff] say, or ctx is done.
func (vm *VM) Wait(ctx context.Context) error {
	select {
	case <-vm.process.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("microVM %s: wait for its end: %w", vm.name, ctx.Err())
	}
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close() // memory; QEMU has its own descriptor
	}
}
