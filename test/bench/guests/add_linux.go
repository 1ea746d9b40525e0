package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strings"
	"time"

	"github.com/tapir-cni/tapir/test/bench/node"
)

// maxClones is how many the addresses below are for.
const maxClones = 60000

// Kinds of clones.
const (
	byTapir = "tapir"
	byGuide = "iptables"
)

// measureAdds fills the node with clones of both kinds, then adds more, in random turns, and measures these.
func measureAdds(o options, n *node.Node, report *Report) error {
	net := network{name: "clones", subnet: "10.224.0.0/16", clones: true}
	kinds := []struct {
		name string
		make func(i int) error
	}{
		{byTapir, func(i int) error {
			netns, err := n.NewNetns()
			if err != nil {
				return err
			}
			_, err = net.call(o, "ADD", fmt.Sprintf("clone-%d", i), netns, nil)
			return err
		}},
		{byGuide, guideClone},
	}
	order := rand.New(rand.NewPCG(1, 2)) // the same order in every run
	for i := range o.clones + o.adds {
		for _, k := range order.Perm(len(kinds)) {
			begin := time.Now()
			if err := kinds[k].make(i); err != nil {
				return fmt.Errorf("clone %d by %s: %w", i, kinds[k].name, err)
			}
			if i >= o.clones {
				report.add("add", kinds[k].name, "ms", float64(time.Since(begin).Microseconds())/1000)
			}
		}
	}
	return nil
}

// guideClone makes the i-th clone as Firecracker's docs/snapshotting/network-for-clones.md does it: with its commands, one process each
// and without sudo, the rule for the way in and, since else all clones had one address outside, the one for the way out that its
// earlier editions had. The netns goes with the node.
func guideClone(i int) error {
	ns := fmt.Sprintf("fc%d", i)
	// Each veth has a /30 of 10.64.0.0/12, each clone an address of 172.17.0.0/16 and what follows.
	link := 10<<24 + 64<<16 + 4*i
	clone := dotted(172<<24 + 17<<16 + i + 1)
	outer, inner, veth := dotted(link+1), dotted(link+2), fmt.Sprintf("veth%d", i+1)
	within := "ip netns exec " + ns + " "
	for _, line := range []string{
		"ip netns add " + ns,
		within + "ip tuntap add name vmtap0 mode tap",
		within + "ip addr add 192.168.241.1/29 dev vmtap0",
		within + "ip link set vmtap0 up",
		"ip link add name " + veth + " type veth peer name veth0 netns " + ns,
		within + "ip addr add " + inner + "/30 dev veth0",
		within + "ip link set dev veth0 up",
		"ip addr add " + outer + "/30 dev " + veth,
		"ip link set dev " + veth + " up",
		within + "ip route add default via " + outer,
		within + "iptables -t nat -A POSTROUTING -o veth0 -s 192.168.241.2 -j SNAT --to " + clone,
		within + "iptables -t nat -A PREROUTING -i veth0 -d " + clone + " -j DNAT --to 192.168.241.2",
		"ip route add " + clone + " via " + inner,
	} {
		words := strings.Fields(line)
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			return errors.Join(fmt.Errorf("%s: %w", line, err), errors.New(strings.TrimSpace(string(out))))
		}
	}
	return nil
}

func dotted(a int) string { return fmt.Sprintf("%d.%d.%d.%d", a>>24, a>>16&0xff, a>>8&0xff, a&0xff) }
