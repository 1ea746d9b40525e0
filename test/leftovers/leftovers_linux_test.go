package main

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/tapir-cni/tapir/internal/testnode"
)

// mainEnv makes the test binary the command itself.
const mainEnv = "LEFTOVERS_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(mainEnv) != "" {
		main()
		return
	}
	testnode.Main(m)
}

// leftovers runs the command on a shell script and gives its exit code and what it wrote.
func leftovers(t *testing.T, script string) (code int, output string) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-settle", "400ms", "bash", "-c", script)
	cmd.Env = append(os.Environ(), mainEnv+"=1")
	out, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode(), string(out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return 0, string(out)
}

func TestNamesWhatTheCommandLeft(t *testing.T) {
	testnode.Require(t, "root", "bpf")
	for _, tt := range []struct{ name, script, undo, want string }{
		{"link", "ip link add left0 type veth peer name left1", "ip link del left0", "link left0 is new"},
		{"alias", "ip link set lo alias x", "ip link set lo alias ''", "link lo: was"},
		{"address", "ip addr add 10.1.2.3/32 dev lo", "ip addr del 10.1.2.3/32 dev lo", "address 10.1.2.3/32 on lo is new"},
		{"route", "ip route add blackhole 10.9.9.0/24", "ip route del blackhole 10.9.9.0/24", "route 10.9.9.0/24 table 254"},
		{"IPv6 route", "ip route add blackhole fd99::/64", "ip route del blackhole fd99::/64", "route fd99::/64 table 254"},
		{"rule", "ip rule add from 10.1.1.1 table 99", "ip rule del from 10.1.1.1 table 99", "rule ip rule"},
		{"neighbour", "ip link add left0 type veth peer name left1; ip link set left0 up; ip neigh add 10.3.3.3 lladdr 02:00:00:00:00:01 dev left0",
			"ip link del left0", "neighbour 10.3.3.3 on left0 is new"},
		{"nft table", "nft add table inet left", "nft delete table inet left", "nft table inet left is new"},
		{"nft rule", "nft add table ip t; nft add chain ip t c", "nft delete table ip t", "nft table ip t is new"},
		{"named netns", "touch /run/netns/left; mount --bind /proc/self/ns/net /run/netns/left", "umount /run/netns/left; rm /run/netns/left", "mount /run/netns/left is new"},
		{"bpffs directory", "mkdir /sys/fs/bpf/left", "rmdir /sys/fs/bpf/left", "BPF pin /sys/fs/bpf/left is new"},
		{"file", "touch /run/left", "rm /run/left", "file /run/left is new"},
		{"sysctl", "echo 1 > /proc/sys/net/ipv4/ip_forward", "echo 0 > /proc/sys/net/ipv4/ip_forward", `sysctl net/ipv4/ip_forward: was "0", is "1"`},
		{"cgroup", "mount -t tmpfs t /sys/fs/cgroup && mkdir /sys/fs/cgroup/tapir-left", "umount /sys/fs/cgroup", "cgroup /sys/fs/cgroup/tapir-left is new"},
		{"process", "sleep 60 & exit 0", "true", "process"},
		{"process of its own session", "setsid sleep 60 & exit 0", "true", "sleep 60"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Cleanup(func() {
				if out, err := exec.Command("bash", "-ec", tt.undo).CombinedOutput(); err != nil {
					t.Errorf("%s: %v\n%s", tt.undo, err, out)
				}
			})
			code, output := leftovers(t, tt.script)
			if code != exitLeft {
				t.Errorf("exit code: want %d, got %d\n%s", exitLeft, code, output)
			}
			if !strings.Contains(output, tt.want) {
				t.Errorf("output does not say %q:\n%s", tt.want, output)
			}
		})
	}
}

func TestGoneObjectIsNamed(t *testing.T) {
	testnode.Require(t, "root")
	if err := os.WriteFile("/run/there", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	code, output := leftovers(t, "rm /run/there")
	if code != exitLeft || !strings.Contains(output, "file /run/there is gone") {
		t.Errorf("exit code %d, want %d and the file's name\n%s", code, exitLeft, output)
	}
}

func TestWhatIsUndoneIsNoLeftover(t *testing.T) {
	testnode.Require(t, "root")
	const script = `set -e
		touch /run/netns/s; unshare -n mount --bind /proc/self/ns/net /run/netns/s
		ip link add left0 type veth peer name left1 netns s; nft add table ip t; touch /run/x
		rm /run/x; nft delete table ip t; umount /run/netns/s; rm /run/netns/s; (sleep 0.1 &)`
	if code, output := leftovers(t, script); code != 0 {
		t.Errorf("exit code: want 0, got %d\n%s", code, output)
	}
}

func TestExitCodeIsTheCommands(t *testing.T) {
	testnode.Require(t, "root")
	if code, output := leftovers(t, "exit 7"); code != 7 {
		t.Errorf("exit code: want 7, got %d\n%s", code, output)
	}
	if code, output := leftovers(t, "touch /run/y; exit 7"); code != 7 || !strings.Contains(output, "file /run/y is new") {
		t.Errorf("exit code %d, want 7 and the file's name\n%s", code, output)
	}
	if err := os.Remove("/run/y"); err != nil {
		t.Error(err)
	}
}
