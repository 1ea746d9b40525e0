package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/tapir-cni/tapir/internal/sysfs"
	"github.com/tapir-cni/tapir/test/bench/guest"
	"github.com/tapir-cni/tapir/test/bench/node"
)

// mtu of the TAP and of the guest, in bytes.
const mtu = 1500

const tapName = "tap-eth0"

// A sandbox is a pod whose TAP tapir made, and a guest with the kernel's network stack. Frames cross between the two through a pump alone.
type sandbox struct {
	bin, id string
	pod     string // netns
	guest   guest.Stack
	tap     *sysfs.Device // of the pod's
	inside  *guest.Queue  // of the guest's own TAP; stays open
}

// newSandbox runs tapir's ADD and makes the guest by what the result says.
func newSandbox(n *node.Node, bin, id string) (s *sandbox, err error) {
	paths, err := n.NewNetnses(2)
	if err != nil {
		return nil, err
	}
	s = &sandbox{bin: bin, id: id, pod: paths[0], guest: guest.Stack{Netns: paths[1], MTU: mtu}}
	result, err := s.call("ADD")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if err = s.read(result); err != nil {
		return nil, err
	}
	if err = s.guest.Create(); err != nil {
		return nil, err
	}
	if s.inside, err = guest.Open(s.guest.Netns, guest.StackTAP, guest.OffloadNone); err != nil {
		return nil, err
	}
	s.tap, err = sysfs.Open(s.pod, tapName)
	return s, err
}

// close runs tapir's DEL. The guest goes with the node.
func (s *sandbox) close() error {
	var errs []error
	if s.inside != nil {
		errs = append(errs, s.inside.Close())
	}
	if s.tap != nil {
		errs = append(errs, s.tap.Close())
	}
	_, err := s.call("DEL")
	return errors.Join(append(errs, err)...)
}

func (s *sandbox) call(verb string) ([]byte, error) {
	cmd := exec.Command(filepath.Join(s.bin, "tapir"))
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+verb, "CNI_CONTAINERID="+s.id, "CNI_NETNS="+s.pod, "CNI_IFNAME=eth0", "CNI_PATH="+s.bin)
	cmd.Stdin = bytes.NewReader(fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "bench-agent", "type": "tapir", "mtu": %d,
		"ipam": {"type": "tapir-ipam", "ranges": [[{"subnet": "10.203.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}`, mtu))
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s of %s: %w: %s%s", verb, s.id, err, out, errOut.Bytes())
	}
	return out, nil
}

func (s *sandbox) read(result []byte) error {
	var r struct {
		Interfaces []struct{ Name, Mac string }
		IPs        []struct {
			Address netip.Prefix
			Gateway netip.Addr
		}
	}
	if err := json.Unmarshal(result, &r); err != nil {
		return fmt.Errorf("read the result: %w", err)
	}
	for _, i := range r.Interfaces {
		if i.Name != "eth0" {
			continue
		}
		var err error
		if s.guest.MAC, err = net.ParseMAC(i.Mac); err != nil {
			return fmt.Errorf("read the result: %w", err)
		}
	}
	if len(r.IPs) == 0 || s.guest.MAC == nil {
		return fmt.Errorf("read the result: want eth0 with an address, got %s", result)
	}
	s.guest.Address, s.guest.Gateway = r.IPs[0].Address, r.IPs[0].Gateway
	return nil
}
