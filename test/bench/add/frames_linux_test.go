package main

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/tapir-cni/tapir/internal/testnode"
)

func TestMain(m *testing.M) { testnode.Main(m) }

const guestMAC = "02:00:00:00:00:02"

// sandbox makes a netns with the TAP and gives its path and the result that names it.
func sandbox(t *testing.T, commands ...string) (netns, result string) {
	t.Helper()
	testnode.Require(t, "root", "tun")
	netns = testnode.NewNetns(t)
	testnode.In(t, netns, func() {
		for _, command := range append([]string{"ip tuntap add tap-eth0 mode tap vnet_hdr", "ip link set tap-eth0 up"}, commands...) {
			if out, err := exec.Command("bash", "-c", command).CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", command, err, out)
			}
		}
	})
	return netns, fmt.Sprintf(`{"cniVersion":"1.0.0","interfaces":[{"name":"host0"},{"name":"eth0","mac":%q,"sandbox":%q},
		{"name":"tap-eth0","mac":"02:00:00:00:00:03","sandbox":%q}],"ips":[{"interface":1,"address":"10.9.0.2/24","gateway":"10.9.0.1"}]}`,
		guestMAC, netns, netns)
}

// The netns's own stack stands for the gateway: it has that address on the TAP.
func TestFramesThatAreAnsweredProveAnAdd(t *testing.T) {
	netns, result := sandbox(t, "ip addr add 10.9.0.1/24 dev tap-eth0")
	if err := proveFrames([]byte(result), netns, 1); err != nil {
		t.Error(err)
	}
}

func TestFramesThatNobodyAnswersProveNothing(t *testing.T) {
	netns, result := sandbox(t)
	err := proveFrames([]byte(result), netns, 1)
	if err == nil || !strings.Contains(err.Error(), "ARP for 10.9.0.1") {
		t.Errorf("want an error that names the ARP request, got %v", err)
	}
}

// ARP alone is answered at the TAP without a path to the node.
func TestEchoMustBeAnsweredToo(t *testing.T) {
	netns, result := sandbox(t, "ip addr add 10.9.0.1/24 dev tap-eth0", "echo 1 > /proc/sys/net/ipv4/icmp_echo_ignore_all")
	err := proveFrames([]byte(result), netns, 1)
	if err == nil || !strings.Contains(err.Error(), "echo request to 10.9.0.1") {
		t.Errorf("want an error that names the echo request, got %v", err)
	}
}

func TestTapThatIsNotThereProvesNothing(t *testing.T) {
	netns, result := sandbox(t)
	err := proveFrames([]byte(strings.ReplaceAll(result, "tap-eth0", "tap-eth1")), netns, 2)
	// The attach makes the device, being root: nothing is behind it.
	if err == nil {
		t.Error("want an error, got none")
	}
}

func TestGroupDeleteLeavesNothing(t *testing.T) {
	testnode.Require(t, "root", "tun")
	took, err := groupDelete(testnode.NewNetns(t))
	if err != nil {
		t.Fatal(err)
	}
	if took <= 0 {
		t.Errorf("took %s, want more than nothing", took)
	}
}
