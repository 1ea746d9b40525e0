package shortcut_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/test/bench/guest"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// killed runs a verb of the plugin and kills it after a while.
func (p *pod) killed(verb string, after time.Duration) {
	t := p.n.t
	t.Helper()
	config, err := json.Marshal(p.conf)
	check(t, err)
	cmd := exec.Command(command("tapir"))
	cmd.Stdin = bytes.NewReader(config)
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+verb, "CNI_CONTAINERID="+p.id, "CNI_NETNS="+p.netns, "CNI_IFNAME=eth0",
		"CNI_ARGS="+p.args, "CNI_PATH="+os.Getenv(testnode.BinDirEnv))
	p.n.in(func() { check(t, cmd.Start()) })
	time.Sleep(after)
	_ = cmd.Process.Signal(unix.SIGKILL) // it may have ended
	_ = cmd.Wait()
}

// A drip sends a frame of another flow every now and then, until it is told to end.
func drip(e *tapEnd, to netip.Addr) (stop func()) {
	var wg sync.WaitGroup
	ending := make(chan struct{})
	wg.Go(func() {
		for port := uint16(1024); ; port = max(port+1, 1024) {
			select {
			case <-ending:
				return
			case <-time.After(200 * time.Microsecond):
				e.queue.Write(e.frame(to, port))
			}
		}
	})
	return func() { close(ending); wg.Wait() }
}

// loadFrames counts the frames of a load that wait in the queue.
func (e *tapEnd) loadFrames() (count int) {
	buf := make([]byte, guest.MaxFrame)
	for {
		size, errno := e.queue.Read(buf)
		if errno != 0 {
			return count
		}
		if guest.IsUDP(buf[:size], loadPort) {
			count++
		}
	}
}

// The address of a pod that has gone, in order or by a crash, is another's at once, and frames that never stop reach only that one:
// by the shortcut where it takes part, and else by the default path, whatever was left in the maps.
func TestAddressUsedAgainAtOnce(t *testing.T) {
	n := newNode(t)
	a, bystander := n.bare("a", conf("native", nil)), n.bare("bystander", conf("native", nil))
	address := netip.MustParseAddr("10.9.0.99")
	stop := drip(a, address)
	defer stop()
	t.Cleanup(func() {
		n.ctl("cleanup", "--yes", "--state-dir", otherState)
		check(t, os.RemoveAll(otherState))
	})
	r := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	for i, tt := range []struct {
		name, mode string
		goes       func(old *pod)
	}{
		{"DEL", "native", (*pod).del},
		{"DEL, then off", "off", (*pod).del},
		{"killed DEL", "native", func(old *pod) { old.killed("DEL", rand.N(30*time.Millisecond)); old.del() }},
		{"killed DEL, then off", "off", func(old *pod) { old.killed("DEL", rand.N(30*time.Millisecond)); old.del() }},
		{"lost state", "native", (*pod).lose},
		{"lost state, then off", "off", (*pod).lose},
	} {
		old := n.sandbox(fmt.Sprintf("old%d", i), conf("native", nil))
		old.args = "IP=" + address.String()
		old.killed("ADD", time.Duration(r.IntN(40))*time.Millisecond) // whatever that leaves
		old.del()
		old.add()
		first := openEnd(old)
		testnode.Eventually(t, patience, func() error {
			if first.loadFrames() == 0 {
				return fmt.Errorf("%s: the old pod gets no frame", tt.name)
			}
			return nil
		})
		check(t, first.queue.Close())
		tt.goes(old)

		// With a folder of its own it knows nothing of the other's lease.
		fresh := n.sandbox(fmt.Sprintf("fresh%d", i), withStateDir(conf(tt.mode, nil), otherState))
		fresh.args = old.args
		fresh.add()
		if got := fresh.result.address[ipv4].Addr(); got != address {
			t.Fatalf("%s: the next pod has %s, want %s", tt.name, got, address)
		}
		second := openEnd(fresh)
		w := a.during(func() {
			testnode.Eventually(t, patience, func() error {
				if second.loadFrames() == 0 {
					return fmt.Errorf("%s: the next pod gets no frame", tt.name)
				}
				return nil
			})
		})
		if tt.mode == "off" {
			w.wantNone(t, tt.name, "xdp_pass_no_target")
		} else {
			w.wantTaken(t, tt.name, "xdp_to_guest")
		}
		if count := bystander.loadFrames(); count > 0 {
			t.Errorf("%s: %d frames reached somebody else", tt.name, count)
		}
		old.del() // again, or late: the address is not its own any more
		second.loadFrames()
		testnode.Eventually(t, patience, func() error {
			if second.loadFrames() == 0 {
				return fmt.Errorf("%s: no frame after another DEL of the old pod", tt.name)
			}
			return nil
		})
		check(t, second.queue.Close())
		fresh.del()
	}
}

// otherState is where the state of the next pods is.
const otherState = stateDir + "-other"

func withStateDir(c object, dir string) object {
	c["stateDir"] = dir
	c["ipam"].(object)["stateDir"] = dir
	return c
}

// lose takes the sandbox away, as the crash of a runtime does, and leaves record and map entries.
func (p *pod) lose() {
	t := p.n.t
	t.Helper()
	check(t, unix.Unmount(p.netns, unix.MNT_DETACH))
	testnode.Eventually(t, patience, func() (err error) {
		p.n.in(func() {
			if _, missing := netlink.LinkByName(p.result.host); missing == nil {
				err = fmt.Errorf("device %s is still there", p.result.host)
			}
		})
		return err
	})
}
