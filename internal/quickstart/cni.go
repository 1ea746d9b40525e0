package quickstart

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/tapir-cni/tapir/internal/guestconfig"
)

const (
	networkName = "quickstart"
	ifName      = "eth0"
	guestMTU    = 1500
	cniCache    = "/run/cni"
)

// network is the plugin, called as a container runtime calls it: by libcni.
type network struct {
	cni  *libcni.CNIConfig
	list *libcni.NetworkConfigList
}

func newNetwork(binDir string, queues int) (network, error) {
	conf := map[string]any{
		"cniVersion": "1.1.0",
		"name":       networkName,
		"plugins": []any{map[string]any{
			"type": "tapir", "queues": queues, "mtu": guestMTU, "ipMasq": true,
			"ipam": map[string]any{
				"type": "tapir-ipam",
				"ranges": [][]map[string]string{
					{{"subnet": "10.9.0.0/24"}},
					{{"subnet": "fd00:9::/64"}},
				},
				"routes": []map[string]string{{"dst": "0.0.0.0/0"}, {"dst": "::/0"}},
			},
		}},
	}
	b, err := json.Marshal(conf)
	if err != nil {
		return network{}, err
	}
	list, err := libcni.NetworkConfFromBytes(b)
	if err != nil {
		return network{}, err
	}
	return network{libcni.NewCNIConfigWithCacheDir([]string{binDir}, cniCache, nil), list}, nil
}

// pod is one sandbox before and after its ADD.
type pod struct {
	name, netns string
	result      *types100.Result
	guest       guestconfig.Guest
	add, del    time.Duration
}

func (p *pod) runtime() *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: "quickstart-" + p.name, NetNS: p.netns, IfName: ifName}
}

// add has the plugin make the pod's TAP and derives from the result alone what VMM and guest are to be told.
func (n network) add(ctx context.Context, p *pod, queues int) error {
	start := time.Now()
	r, err := n.cni.AddNetworkList(ctx, n.list, p.runtime())
	p.add = time.Since(start)
	if err != nil {
		return fmt.Errorf("ADD of sandbox %s: %w", p.name, err)
	}
	if p.result, err = types100.NewResultFromResult(r); err != nil {
		return err
	}
	p.guest, err = guestconfig.FromResult(p.result, guestconfig.Query{
		ContainerID: p.runtime().ContainerID, IfName: ifName, Queues: queues,
	})
	return err
}

func (n network) del(ctx context.Context, p *pod) error {
	start := time.Now()
	err := n.cni.DelNetworkList(ctx, n.list, p.runtime())
	p.del = time.Since(start)
	if err != nil {
		return fmt.Errorf("DEL of sandbox %s: %w", p.name, err)
	}
	return nil
}

// device names the result's interface in that sandbox with that name prefix, by the kernel's words.
func (p *pod) hostEnd() string {
	for _, i := range p.result.Interfaces {
		if i.Sandbox == "" {
			return i.Name
		}
	}
	return "none"
}
