package guest_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/test/bench/guest"
)

func TestMain(m *testing.M) { testnode.Main(m) }

var (
	hostMAC  = net.HardwareAddr{0x02, 0, 0, 0, 0, 0x03}
	guestMAC = net.HardwareAddr{0x02, 0, 0, 0, 0, 0x02}
	hostAt   = netip.MustParseAddrPort("10.9.0.1:9999")
	guestAt  = netip.MustParseAddrPort("10.9.0.2:20000")
)

// tapToHost makes a TAP whose netns has the address hostAt, and a UDP socket there.
func tapToHost(t *testing.T) (*guest.Queue, *net.UDPConn) {
	t.Helper()
	testnode.Require(t, "root", "tun")
	netns := testnode.NewNetns(t)
	var socket *net.UDPConn
	testnode.In(t, netns, func() {
		for _, command := range []string{"ip tuntap add tap0 mode tap vnet_hdr", "ip link set tap0 address " + hostMAC.String(),
			"ip addr add 10.9.0.1/24 dev tap0", "ip link set tap0 up"} {
			if out, err := exec.Command("bash", "-c", command).CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", command, err, out)
			}
		}
		var err error
		if socket, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(hostAt)); err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(func() { _ = socket.Close() })
	q, err := guest.Open(netns, "tap0", guest.OffloadNone)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := q.Close(); err != nil {
			t.Error(err)
		}
	})
	return q, socket
}

// arrives writes the frame until the socket has a datagram, and gives that one; nil after the time.
func arrives(t *testing.T, q *guest.Queue, socket *net.UDPConn, frame []byte, patience time.Duration) []byte {
	t.Helper()
	buf := make([]byte, guest.MaxFrame)
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		if errno := q.Write(frame); errno != 0 {
			t.Fatalf("write: %v", errno)
		}
		if err := socket.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		n, from, err := socket.ReadFromUDPAddrPort(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if from != guestAt {
			t.Fatalf("want a datagram from %s, got one from %s", guestAt, from)
		}
		return buf[:n]
	}
	return nil
}

// The kernel's stack is the judge of headers and checksums.
func TestKernelTakesTheFrames(t *testing.T) {
	q, socket := tapToHost(t)
	for _, partial := range []bool{false, true} {
		for _, size := range []int{guest.MinUDP, 61, 512, 1513, 1514} {
			t.Run(fmt.Sprintf("%d bytes, partial checksum %t", size, partial), func(t *testing.T) {
				frame := guest.UDP{ToMAC: hostMAC, FromMAC: guestMAC, From: guestAt, To: hostAt, Size: size, PartialChecksum: partial}.Frame()
				guest.PutSequence(frame, 0xfedc0000+uint32(size))
				payload := arrives(t, q, socket, frame, 10*time.Second)
				if want := size - guest.EthernetSize - 28; len(payload) != want {
					t.Errorf("want %d bytes of payload, got %d", want, len(payload))
				}
			})
		}
	}
}

// Without this the test above would pass on frames that nobody checks.
func TestKernelRefusesAWrongChecksum(t *testing.T) {
	q, socket := tapToHost(t)
	frame := guest.UDP{ToMAC: hostMAC, FromMAC: guestMAC, From: guestAt, To: hostAt, Size: 100}.Frame()
	if arrives(t, q, socket, frame, 10*time.Second) == nil {
		t.Fatal("the frame did not arrive before it was spoiled")
	}
	frame[len(frame)-1]++
	if payload := arrives(t, q, socket, frame, 300*time.Millisecond); payload != nil {
		t.Errorf("a frame with a wrong checksum arrived: %x", payload)
	}
}

func TestSequenceIsReadBack(t *testing.T) {
	frame := guest.UDP{ToMAC: hostMAC, FromMAC: guestMAC, From: guestAt, To: hostAt, Size: guest.MinUDP}.Frame()
	guest.PutSequence(frame, 4711)
	if got := guest.Sequence(frame); got != 4711 {
		t.Errorf("want 4711, got %d", got)
	}
	if !guest.IsUDP(frame, hostAt.Port()) || guest.IsUDP(frame, hostAt.Port()+1) {
		t.Error("IsUDP must know the frame by its port")
	}
}
