package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tapir-cni/tapir/tap"
)

// What becomes of a frame that was written.
const (
	sinkDrop  = "drop"  // a BPF program at the TAP's clsact ingress drops the skb: all of the driver's own way
	sinkStack = "stack" // a UDP socket whose buffer is full: the host's stack to the end
	sinkXDP   = "xdp"   // native XDP drops it before there is an skb: the limit
	sinkGRO   = "gro"   // as drop; the frames are segments of a TCP stream, and the skbs that the program gets of them are counted
)

// What NAPI the queues have.
const (
	napiOff      = "off"
	napiOn       = "on"
	napiThreaded = "threaded"
	napiFlush    = "flush" // on, with gro_flush_timeout 20 us and napi_defer_hard_irqs 1
)

// napiSettings are files of the device's folder in sysfs.
var napiSettings = map[string]map[string]string{
	napiThreaded: {"threaded": "1"},
	napiFlush:    {"gro_flush_timeout": "20000", "napi_defer_hard_irqs": "1"},
}

// ringLength is tapir's default txQueueLen, in frames.
const ringLength = 1000

// A device is a TAP with its queues open.
type device struct {
	name   string
	sink   string
	napi   string
	host   endpoint // its own
	guest  endpoint
	queues *tap.Queues
	link   netlink.Link
}

// openDevice makes the TAP number i in the thread's netns, as tapir does, and opens all its queues with tapir's own package.
func openDevice(i, queues int, napi, sink string) (_ *device, err error) {
	d := &device{name: fmt.Sprintf("tap%d", i), sink: sink, napi: napi}
	d.host.ip, d.guest.ip = netip.AddrFrom4([4]byte{10, 100, byte(i), 1}), netip.AddrFrom4([4]byte{10, 100, byte(i), 2})
	owner, offload := 0, 0
	if err := tap.Create(tap.Spec{Name: d.name, Queues: queues, Owner: &owner}); err != nil {
		return nil, err
	}
	if d.link, err = netlink.LinkByName(d.name); err != nil {
		return nil, err
	}
	d.host.mac, d.guest.mac = d.link.Attrs().HardwareAddr, net.HardwareAddr{0x02, 0, 0, 0, 0, 0x01}
	address := &netlink.Addr{IPNet: &net.IPNet{IP: d.host.ip.AsSlice(), Mask: net.CIDRMask(24, 32)}}
	noqueue := &netlink.GenericQdisc{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: d.link.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT}, QdiscType: "noqueue",
	}
	for _, step := range []func() error{
		func() error { return netlink.LinkSetTxQLen(d.link, ringLength) },
		func() error { return netlink.QdiscReplace(noqueue) },
		func() error { return netlink.AddrAdd(d.link, address) },
		func() error { return netlink.LinkSetUp(d.link) },
	} {
		if err := step(); err != nil {
			return nil, fmt.Errorf("%s: ring, qdisc, address or link state: %w", d.name, err)
		}
	}
	d.queues, err = tap.OpenQueues(tap.QueueOptions{Name: d.name, Count: queues, NAPI: napi != napiOff, Offload: &offload, VnetHdrSize: vnetHeader})
	if err != nil {
		return nil, err
	}
	for file, value := range napiSettings[napi] {
		if err := os.WriteFile("/sys/class/net/"+d.name+"/"+file, []byte(value), 0); err != nil {
			return nil, err
		}
	}
	if err := d.attach(); err != nil {
		return nil, fmt.Errorf("%s: sink %q: %w", d.name, sink, err)
	}
	return d, nil
}

// close closes the queues and removes the TAP.
func (d *device) close() error { return errors.Join(d.queues.Close(), netlink.LinkDel(d.link)) }

// attach puts the sink's program in place. It stays with the device.
func (d *device) attach() error {
	switch d.sink {
	case sinkDrop, sinkGRO:
		program, err := load(ebpf.SchedCLS, 2) // TC_ACT_SHOT
		if err != nil {
			return err
		}
		defer program.Close()
		index := d.link.Attrs().Index
		clsact := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}
		if err := netlink.QdiscAdd(clsact); err != nil {
			return err
		}
		return netlink.FilterAdd(&netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Protocol: unix.ETH_P_ALL, Priority: 1},
			Fd:          program.FD(), Name: "drop", DirectAction: true,
		})
	case sinkXDP:
		program, err := load(ebpf.XDP, 1) // XDP_DROP
		if err != nil {
			return err
		}
		defer program.Close()
		return netlink.LinkSetXdpFdWithFlags(d.link, program.FD(), unix.XDP_FLAGS_DRV_MODE)
	}
	return nil
}

// load loads a program that gives one verdict to each frame.
func load(kind ebpf.ProgramType, verdict int32) (*ebpf.Program, error) {
	return ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "verdict", Type: kind, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, verdict), asm.Return()},
	})
}

// received is how many frames the driver has counted as written to it, those that XDP dropped included.
func (d *device) received() (uint64, error) {
	link, err := netlink.LinkByIndex(d.link.Attrs().Index)
	if err != nil {
		return 0, err
	}
	s := link.Attrs().Statistics
	if s == nil {
		return 0, errors.New("the kernel gives no statistics")
	}
	return s.RxPackets + s.RxDropped, nil
}

// passed is what has reached the program at clsact.
type passed struct {
	frames uint64
	skbs   uint64 // each of one frame, or of several that GRO merged
}

// counts says whether there is such a program.
func (d *device) counts() bool { return d.sink == sinkDrop || d.sink == sinkGRO }

// passed reads clsact's counters: of packets, in which a merged skb counts as all of its segments, and of drops, in which it is one.
func (d *device) passed() (passed, error) {
	list, err := netlink.QdiscList(d.link)
	if err != nil {
		return passed{}, err
	}
	for _, q := range list {
		if s := q.Attrs().Statistics; q.Type() == "clsact" && s != nil && s.Basic != nil && s.Queue != nil {
			return passed{uint64(s.Basic.Packets), uint64(s.Queue.Drops)}, nil
		}
	}
	return passed{}, fmt.Errorf("%s: want a clsact that counts", d.name)
}

// drainTime bounds the wait for frames that a timer or a thread of NAPI's still has.
const drainTime = 20 * time.Second

// drain waits until so many frames more than before have reached the program, and gives what has since.
func (d *device) drain(before passed, frames int) (passed, error) {
	for begin := time.Now(); ; time.Sleep(200 * time.Microsecond) {
		now, err := d.passed()
		if err != nil {
			return passed{}, err
		}
		// The kernel's counters have 32 bits.
		got := passed{uint64(uint32(now.frames - before.frames)), uint64(uint32(now.skbs - before.skbs))}
		if got.frames >= uint64(frames) {
			return got, nil
		}
		if time.Since(begin) > drainTime {
			return got, fmt.Errorf("%s: %d frames written, and %d reached the program within %s", d.name, frames, got.frames, drainTime)
		}
	}
}

// openSink binds the UDP socket that nobody reads: its buffer fills, and then each datagram ends there.
func openSink() (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 1)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrInet4{Port: sinkPort})
	}
	if err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}
