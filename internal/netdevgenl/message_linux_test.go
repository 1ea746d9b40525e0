package netdevgenl

import (
	"encoding/binary"
	"os"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/netlink"
	"github.com/tapir-cni/tapir/internal/testnode"
	vnetlink "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { testnode.Main(m) }

// attribute is one of a message, as the kernel writes it: length, type, value, padding to four bytes (include/uapi/linux/netlink.h).
func attribute(kind uint16, value []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	return append(b, make([]byte, (4-len(b)%4)%4)...)
}

func u32(kind uint16, v uint32) []byte {
	return attribute(kind, binary.NativeEndian.AppendUint32(nil, v))
}

func u64(kind uint16, v uint64) []byte {
	return attribute(kind, binary.NativeEndian.AppendUint64(nil, v))
}

func join(parts ...[]byte) (out []byte) {
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

func parsed[T any](t *testing.T, data []byte, parse func(*netlink.AttributeDecoder) (T, error)) []T {
	t.Helper()
	var list []T
	if err := decode(data, collect(&list, parse)); err != nil {
		t.Fatal(err)
	}
	return list
}

// Messages as the kernel sends them by Documentation/netlink/specs/netdev.yaml, with attributes of later versions in between: numbers of
// type uint have four or eight bytes.
func TestMessagesOfTheKernel(t *testing.T) {
	pool := join(u32(1, 17), u32(2, 3), u32(3, 8193), u32(4, 512), u64(5, 5<<32), u64(6, 9), u32(99, 1))
	if diff := cmp.Diff([]PagePool{{ID: 17, IfIndex: 3, NAPI: 8193, Inflight: 512, InflightBytes: 5 << 32}}, parsed(t, pool, parsePagePool)); diff != "" {
		t.Errorf("page pool (-want +got):\n%s", diff)
	}
	const nested = 1 << 15
	stats := join(attribute(1|nested, join(u64(1, 1<<40), u32(2, 3))), u32(8, 100), u64(9, 7<<33), u32(14, 90), u32(18, 2), u32(19, 5))
	want := PagePoolStats{ID: 1 << 40, IfIndex: 3}
	want.Pages[0], want.Pages[1], want.Pages[6], want.Pages[10] = 100, 7<<33, 90, 2
	if diff := cmp.Diff([]PagePoolStats{want}, parsed(t, stats, parsePagePoolStats)); diff != "" {
		t.Errorf("statistics (-want +got):\n%s", diff)
	}
	for i, name := range map[PageEvent]string{0: "alloc_fast", 1: "alloc_slow", 6: "recycle_cached", 10: "recycle_released_refcnt"} {
		if i.String() != name {
			t.Errorf("event %d: want %s, got %s", i, name, i)
		}
	}
	queue := join(u32(1, 2), u32(2, 3), u32(3, 1), u32(4, 8194), attribute(6, nil))
	if diff := cmp.Diff([]Queue{{ID: 2, IfIndex: 3, Type: QueueTx, NAPI: 8194}}, parsed(t, queue, parseQueue)); diff != "" {
		t.Errorf("queue (-want +got):\n%s", diff)
	}
	napi := join(u32(1, 3), u32(2, 8194), u32(3, 42), u32(4, 1234), u32(5, 0), u32(6, 20000), u32(8, 1))
	if diff := cmp.Diff([]NAPI{{ID: 8194, IfIndex: 3, IRQ: 42, PID: 1234}}, parsed(t, napi, parseNAPI)); diff != "" {
		t.Errorf("NAPI (-want +got):\n%s", diff)
	}
}

// What is cut or too short is an error, and no panic.
func TestDamagedMessages(t *testing.T) {
	for name, data := range map[string][]byte{
		"cut": u32(2, 3)[:6], "short number": attribute(2, []byte{1}), "long": binary.NativeEndian.AppendUint32(nil, 0xffff),
	} {
		var list []Queue
		if err := decode(data, collect(&list, parseQueue)); err == nil {
			t.Errorf("%s: want an error, got %+v", name, list)
		}
	}
}

// A veth whose GRO is on has a NAPI for each queue, and one thread each where it is threaded: this kernel says so.
func TestARealDevice(t *testing.T) {
	testnode.Require(t, "root")
	attrs := vnetlink.NewLinkAttrs()
	attrs.Name, attrs.NumRxQueues, attrs.NumTxQueues = "v0", 2, 2
	if err := vnetlink.LinkAdd(&vnetlink.Veth{LinkAttrs: attrs, PeerName: "v1"}); err != nil {
		t.Fatal(err)
	}
	link, err := vnetlink.LinkByName("v0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := vnetlink.LinkDel(link); err != nil {
			t.Error(err)
		}
	})
	c, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // of a socket that was read
	napis, err := c.NAPIs(link.Attrs().Index)
	if err != nil || len(napis) != 0 {
		t.Fatalf("without GRO: want no NAPI, got %+v, %v", napis, err)
	}
	for _, one := range []string{"v0", "v1"} {
		end, findErr := vnetlink.LinkByName(one)
		if findErr != nil || vnetlink.LinkSetUp(end) != nil {
			t.Fatal("set up", one, findErr)
		}
	}
	setGRO(t, "v0")
	if err := os.WriteFile("/sys/class/net/v0/threaded", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	napis, err = c.NAPIs(link.Attrs().Index)
	if err != nil || len(napis) != 2 {
		t.Fatalf("with GRO: want two NAPIs, got %+v, %v", napis, err)
	}
	for _, n := range napis {
		if n.ID == 0 || n.PID == 0 || n.IRQ != 0 || n.IfIndex != link.Attrs().Index {
			t.Errorf("want an id, a thread and no interrupt, got %+v", n)
		}
	}
	queues, err := c.Queues(link.Attrs().Index)
	if err != nil || len(queues) != 4 {
		t.Errorf("want two queues each way, got %+v, %v", queues, err)
	}
	// A veth's page pools do not name their device, so that the kernel lists none; it answers both questions all the same.
	if pools, err := c.PagePools(); err != nil || len(pools) != 0 {
		t.Errorf("want no page pools, got %+v, %v", pools, err)
	}
	if stats, err := c.PagePoolStats(); err != nil || len(stats) != 0 {
		t.Errorf("want no statistics, got %+v, %v", stats, err)
	}
}

// setGRO turns GRO on (ETHTOOL_SGRO of include/uapi/linux/ethtool.h).
func setGRO(t *testing.T, name string) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	value := [2]uint32{0x2c, 1} // ETHTOOL_SGRO, on
	var request struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	copy(request.name[:], name)
	request.data = unsafe.Pointer(&value)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
		t.Fatal(errno)
	}
}
