package quickstart

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tapir-cni/tapir/internal/microvm"
	"github.com/tapir-cni/tapir/internal/rtnl"
	"github.com/tapir-cni/tapir/tap"
)

const (
	nodeName  = "node"
	worldName = "world"
	// undoTime is for DELs and clean-up, which go on when all else was cancelled.
	undoTime = 15 * time.Second
)

// inner is the quick start on its own node.
type inner struct {
	Options
	stage
	progress
	report  Report
	pid     string // of this process, on the machine
	network network
	pods    []*pod
	vms     []*microvm.VM
}

// runInner is process 1 of the new namespaces. It sends its report, with its error, to the outer process.
func runInner(ctx context.Context, o Options, handed string) error {
	in := &inner{Options: o}
	if err := json.Unmarshal([]byte(handed), &in.stage); err != nil {
		return fmt.Errorf("read %s: %w; it is set by the quick start for its own use, unset it", stageEnv, err)
	}
	if os.Getpid() != 1 {
		return fmt.Errorf("%s is set, and this is not process 1 of the quick start's own node; unset it", stageEnv)
	}
	in.progress = progress{o.progressWriter(), in.Start}
	in.report = Report{
		Kernel: in.Image.Release, Accel: string(in.Accel),
		Sandboxes: []Sandbox{}, Pings: []Ping{}, Transfers: []Transfer{}, LeftInside: []string{}, LeftOutside: []string{},
	}
	err := in.run(ctx)
	if err != nil {
		in.report.Error = err.Error()
		in.report.Interrupted = errors.Is(err, ErrInterrupted)
	}
	// The outer process returns the error; returned here too, it would be printed twice.
	w := os.NewFile(3, "report")
	if serr := errors.Join(json.NewEncoder(w).Encode(in.report), w.Close()); serr != nil {
		return errors.Join(err, fmt.Errorf("send the report: %w", serr))
	}
	return nil
}

func (in *inner) run(ctx context.Context) (err error) {
	// The mounted /proc is still the machine's, and so is the pid that it gives.
	if in.pid, err = os.Readlink("/proc/self"); err != nil {
		return err
	}
	if err := furnish(); err != nil {
		return err
	}
	in.say("made a node of its own (network, mount and pid namespaces): the machine's interfaces, sysctls, /run and bpffs are not touched")
	if err := in.prepare(); err != nil {
		return err
	}
	before, err := in.settled()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.undo(before)) }()

	work, cancel := context.WithTimeout(ctx, in.Timeout)
	defer cancel()
	if err := in.show(work); err != nil {
		if errors.Is(work.Err(), context.DeadlineExceeded) {
			err = fmt.Errorf("%w; this took longer than --timeout %s", err, in.Timeout)
		}
		return interrupted(ctx, err)
	}
	if in.Keep {
		in.keep(ctx)
	}
	return nil
}

// prepare makes what a node and a container runtime bring along.
func (in *inner) prepare() (err error) {
	if err := addWorld(); err != nil {
		return err
	}
	// libcni makes the folder with its first result and leaves it.
	if err := os.MkdirAll(cniCache+"/results", 0o755); err != nil {
		return err
	}
	for _, name := range []string{"alpha", "beta"} {
		p := &pod{name: name}
		if p.netns, err = addNetns(name); err != nil {
			return err
		}
		in.pods = append(in.pods, p)
	}
	in.say("made the sandboxes alpha and beta, and a world behind the node's uplink (%s, %s)", worldAddrs[0].Addr(), worldAddrs[1].Addr())
	in.network, err = newNetwork(in.stage.BinDir, in.Queues)
	return err
}

// show makes, boots and measures.
func (in *inner) show(ctx context.Context) error {
	for _, p := range in.pods {
		if err := in.network.add(ctx, p, in.Queues); err != nil {
			return err
		}
		in.say("ADD %s: %s with %d queues for guest %s, %s", p.name, p.guest.TAP, p.guest.Queues, p.guest.MAC, milliseconds(p.add))
	}
	if err := in.boot(ctx); err != nil {
		return err
	}
	if !in.JSON {
		printSandboxes(in.Out, in.report.Sandboxes)
		fmt.Fprintln(in.Out)
	}
	stop, err := serveStreams()
	defer stop()
	if err != nil {
		return err
	}
	if err := in.measure(ctx); err != nil {
		return err
	}
	if !in.JSON {
		printMeasured(in.Out, &in.report)
	}
	return nil
}

// boot starts both guests at once and describes the sandboxes.
func (in *inner) boot(ctx context.Context) error {
	in.say("booting a microVM in each sandbox")
	in.vms = make([]*microvm.VM, len(in.pods))
	errs := make([]error, len(in.pods))
	var wg sync.WaitGroup
	for i, p := range in.pods {
		wg.Go(func() {
			in.vms[i], errs[i] = microvm.Start(ctx, microvm.Config{Name: p.name, Guest: p.guest, Image: in.Image, Accel: in.Accel})
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for i, p := range in.pods {
		flags, err := tapFlags(p)
		if err != nil {
			return err
		}
		vm := in.vms[i]
		in.report.Sandboxes = append(in.report.Sandboxes, Sandbox{
			Name: p.name, Guest: p.guest, TAPFlags: flags, PodEnd: p.guest.IfName, HostEnd: p.hostEnd(), Add: p.add, Boot: vm.BootTime,
			QEMU: vm.CommandLine(),
		})
		in.say("guest %s is up after %.1f s: %s, %s, %d queue pairs in use", p.name, vm.BootTime.Seconds(),
			vm.Event.Info.MAC, strings.Join(vm.Event.Info.Addresses, " "), vm.Event.Info.Pairs)
	}
	return nil
}

// tapFlags asks the kernel for the flags that the TAP has now that QEMU is on it.
func tapFlags(p *pod) (flags string, err error) {
	var conn *rtnl.Conn
	if err := inNetns(p.netns, func() (err error) { conn, err = rtnl.Open(); return err }); err != nil {
		return "", err
	}
	defer conn.Close()
	l, err := conn.LinkByName(p.guest.TAP)
	if err != nil {
		return "", fmt.Errorf("TAP %s of sandbox %s: %w", p.guest.TAP, p.name, err)
	}
	info, err := tap.Read(conn, l.Attrs().Index)
	return tap.FlagNames(info.Flags), err
}

func (in *inner) measure(ctx context.Context) error {
	var guests []place
	for i, p := range in.pods {
		g := place{name: p.name, vm: in.vms[i]}
		for _, a := range p.guest.Addresses {
			g.addrs = append(g.addrs, a.Prefix.Addr())
		}
		guests = append(guests, g)
	}
	a, b := guests[0], guests[1]
	// The guests' way to the node is its uplink address: an address that a program on the node would listen on.
	node := place{name: nodeName, addrs: []netip.Addr{nodeUplink[0].Addr(), nodeUplink[1].Addr()}}
	world := place{name: worldName, addrs: []netip.Addr{worldAddrs[0].Addr(), worldAddrs[1].Addr()}}
	in.say("pinging with 56 and 8000 bytes, IPv4 and IPv6")
	for _, w := range [][2]place{{a, b}, {b, a}, {a, node}, {node, a}, {b, world}} {
		if err := measurePings(ctx, &in.report, w[0], w[1]); err != nil {
			return err
		}
	}
	in.say("sending %d MB over TCP each way, IPv4 and IPv6, and comparing every byte", transferBytes>>20)
	for _, w := range [][2]place{{a, b}, {b, a}, {a, node}, {node, a}, {b, world}, {world, b}} {
		if err := measureTransfers(ctx, &in.report, w[0], w[1]); err != nil {
			return err
		}
	}
	return checkPeers(&in.report, guests)
}

// keep waits for Ctrl-C and says meanwhile how to look around.
func (in *inner) keep(ctx context.Context) {
	in.say("--keep: all is left running; Ctrl-C ends it and cleans up")
	in.say("look around on the node from another shell: nsenter -t %s -a", in.pid)
	<-ctx.Done()
}

// undo stops the guests, DELs, cleans up and compares the node with what it was before the first ADD.
func (in *inner) undo(before snapshot) error {
	ctx, cancel := context.WithTimeout(context.Background(), undoTime)
	defer cancel()
	var errs []error
	for _, vm := range in.vms {
		if vm != nil {
			errs = append(errs, vm.Stop())
		}
	}
	for i, p := range in.pods {
		errs = append(errs, in.network.del(ctx, p))
		if i < len(in.report.Sandboxes) {
			in.report.Sandboxes[i].Del = p.del
		}
	}
	in.say("stopped the guests, DELed both sandboxes (%s, %s)", milliseconds(in.pods[0].del), milliseconds(in.pods[1].del))
	if in.Cleanup != nil {
		errs = append(errs, in.Cleanup(ctx))
	}
	left, err := differences(before, in.snapshot)
	errs = append(errs, err)
	if len(left) > 0 {
		in.report.LeftInside = left
		errs = append(errs, fmt.Errorf("the node is not as it was before the first ADD:\n\t%s", strings.Join(left, "\n\t")))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	in.say("the node is as it was before the first ADD: links, addresses, routes, nft tables, bpffs, net sysctls, mounts, /run, processes, " +
		"and both sandboxes are empty")
	return nil
}

// settled is the node when its uplink is up and has its routes, which the kernel adds a while after the addresses: two
// snapshots in a row are alike.
func (in *inner) settled() (snapshot, error) {
	var last snapshot
	for deadline := time.Now().Add(settle); ; time.Sleep(150 * time.Millisecond) {
		state, err := os.ReadFile("/sys/class/net/uplink0/operstate")
		if err != nil {
			return nil, err
		}
		now, err := in.snapshot()
		if err != nil {
			return nil, err
		}
		if strings.TrimSpace(string(state)) == "up" && slices.Equal(now, last) {
			return now, nil
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("the node's uplink is %q and its routes change after %s", strings.TrimSpace(string(state)), settle)
		}
		last = now
	}
}

// snapshot is the node with its sandboxes.
func (in *inner) snapshot() (snapshot, error) {
	s, err := nodeSnapshot()
	if err != nil {
		return nil, err
	}
	for _, p := range in.pods {
		err := inNetns(p.netns, func() error {
			inside, err := take(linkLines, addressLines, routeLines)
			for _, line := range inside {
				s = append(s, "sandbox "+p.name+": "+line)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return sorted(s), nil
}
