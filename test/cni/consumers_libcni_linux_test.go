package cni_test

import (
	"bytes"
	"context"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/tapir-cni/tapir/internal/testnode"
)

// A network is a conflist as users write it, run by libcni as runtimes run it: with its cache, from which DEL and CHECK
// get the configuration and the result of ADD.
type network struct {
	n      *node
	list   *libcni.NetworkConfigList
	cni    *libcni.CNIConfig
	stderr *bytes.Buffer
}

// network reads a conflist of these plugins.
func (n *node) network(name string, plugins ...object) *network {
	n.t.Helper()
	list, err := libcni.ConfListFromBytes(marshal(n.t, object{"cniVersion": "1.1.0", "name": name, "plugins": plugins}))
	if err != nil {
		n.t.Fatal(err)
	}
	stderr := new(bytes.Buffer)
	exec := &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: stderr}, PluginDecoder: version.PluginDecoder{}}
	return &network{n, list, libcni.NewCNIConfigWithCacheDir(cniPath(n.t), n.t.TempDir(), exec), stderr}
}

// runtimeConf is what a runtime says of a pod.
func runtimeConf(p *pod, capabilities object) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: p.id, NetNS: p.netns, IfName: p.ifName, CapabilityArgs: capabilities}
}

// try runs ADD of the list.
func (w *network) try(rt *libcni.RuntimeConf) (result *types100.Result, err error) {
	w.n.t.Helper()
	w.n.in(func() {
		var r types.Result
		if r, err = w.cni.AddNetworkList(context.Background(), w.list, rt); err == nil {
			result, err = types100.NewResultFromResult(r)
		}
	})
	return result, err
}

// add runs ADD of the list, which must succeed.
func (w *network) add(rt *libcni.RuntimeConf) *types100.Result {
	w.n.t.Helper()
	testnode.In(w.n.t, rt.NetNS, func() { w.n.sysctl("net/ipv6/conf/default/accept_dad", "0") })
	r, err := w.try(rt)
	if err != nil {
		w.n.t.Fatalf("ADD of %s by libcni: %v; stderr: %s", rt.ContainerID, err, w.stderr)
	}
	return r
}

// del runs DEL of the list from the cache.
func (w *network) del(rt *libcni.RuntimeConf) {
	w.n.t.Helper()
	w.n.in(func() {
		if err := w.cni.DelNetworkList(context.Background(), w.list, rt); err != nil {
			w.n.t.Errorf("DEL of %s by libcni: %v; stderr: %s", rt.ContainerID, err, w.stderr)
		}
	})
}

// check runs CHECK of the list from the cache.
func (w *network) check(rt *libcni.RuntimeConf) {
	w.n.t.Helper()
	w.n.in(func() {
		if err := w.cni.CheckNetworkList(context.Background(), w.list, rt); err != nil {
			w.n.t.Errorf("CHECK of %s by libcni: %v", rt.ContainerID, err)
		}
	})
}

// libcni gives CHECK and DEL what it has cached: the result of ADD, in the list's version.
func TestLibcniChecksAndDeletesFromItsCache(t *testing.T) {
	for _, layout := range []string{"cri", "firecracker", "plain"} {
		for _, tt := range []struct {
			name    string
			plugins []object
		}{
			{"alone", []object{conf(object{"result": layout})}},
			{"after ptp", []object{{"type": "ptp", "ipam": neighbours[1].hostLocal(t.TempDir())}, chainConf(object{"result": layout})}},
		} {
			t.Run(layout+" "+tt.name, func(t *testing.T) {
				n := newNode(t)
				w := n.network("pods", tt.plugins...)
				p := n.pod("c1", nil)
				rt := runtimeConf(p, nil)
				w.del(rt)                                                      // the Firecracker SDK calls DEL first
				before := without(n.snapshot(), "table ", "counters", "node-") // what all attachments share stays
				r := w.add(rt)
				w.check(rt)
				if cached, err := w.cni.GetNetworkListCachedResult(w.list, rt); err != nil {
					t.Error(err)
				} else {
					c, err := types100.NewResultFromResult(cached)
					if err != nil {
						t.Fatal(err)
					}
					wantUntouched(t, r, c)
				}
				// The runtime forgets the netns, as containerd does after a reboot of the pod.
				gone := *rt
				gone.NetNS = ""
				w.del(&gone)
				w.del(rt)
				wantSame(t, "after DEL", before, without(n.snapshot(), "table ", "counters", "node-"))
			})
		}
	}
}
