package plugin

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"strings"

	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/xdp"
	"golang.org/x/sys/unix"
)

// Kata's file of directly attachable networks, as src/runtime-rs/crates/resource/src/network/dan.rs reads it: one for a sandbox, with
// a device for each of its interfaces.
type danFile struct {
	Netns   string            `json:"netns,omitempty"`
	Devices []json.RawMessage `json:"devices"` // those of others stay as they are
}

// danDevice is one of tapir's devices in it.
type danDevice struct {
	Name     string         `json:"name"` // in the guest
	GuestMAC string         `json:"guest_mac"`
	Device   danHostTap     `json:"device"`
	Network  danNetworkInfo `json:"network_info"`
}

type danHostTap struct {
	Type      string `json:"type"`
	TapName   string `json:"tap_name"`
	QueueNum  int    `json:"queue_num"`  // pairs; Kata opens the TAP with IFF_MULTI_QUEUE if and only if it is above 1
	QueueSize int    `json:"queue_size"` // descriptors of a virtqueue
}

type danNetworkInfo struct {
	Interface danInterface   `json:"interface"`
	Routes    []danRoute     `json:"routes"`
	Neighbors []danNeighbour `json:"neighbors"`
}

type danInterface struct {
	Addresses []netip.Prefix `json:"ip_addresses"`
	MTU       int            `json:"mtu"`
	Type      string         `json:"ntype"`
	Flags     uint32         `json:"flags"`
}

// danRoute: empty texts stand for none. Without destination it is the default route of the gateway's family.
type danRoute struct {
	Dest    string `json:"dest"`
	Gateway string `json:"gateway"`
	Source  string `json:"source"`
	Scope   uint32 `json:"scope"`
	Flags   uint32 `json:"flags"`
	MTU     uint32 `json:"mtu"`
}

type danNeighbour struct {
	Address netip.Prefix `json:"ip_address"`
	MAC     string       `json:"hardware_addr"`
	State   uint32       `json:"state"` // NUD_*
	Flags   uint32       `json:"flags"`
}

// danQueueSize is what Kata takes where a file says 0.
const danQueueSize = 256

// hostTap is the type of a device that Kata opens in the host's netns by name.
const hostTap = "host-tap"

// danName is the file's name in its folder, or why an id cannot be one.
func danName(id string) (string, error) {
	const longest = unix.NAME_MAX - len(".json")
	if id == "" || len(id) > longest || id[0] == '.' || strings.ContainsAny(id, "/\x00") {
		return "", fmt.Errorf("want an id of 1 to %d bytes that is a file name, since Kata's DAN file is named after it, got %q", longest, id)
	}
	return id + ".json", nil
}

// danDeviceOf is what Kata is to know of an attachment.
func danDeviceOf(rec *state.Attachment) danDevice {
	d := danDevice{
		Name: rec.IfName, GuestMAC: rec.GuestMAC,
		Device: danHostTap{Type: hostTap, TapName: rec.TAP.Name, QueueNum: max(rec.Queues, 1), QueueSize: danQueueSize},
		Network: danNetworkInfo{
			Interface: danInterface{Addresses: []netip.Prefix{}, MTU: rec.MTU, Type: "tuntap"},
			Routes:    []danRoute{}, Neighbors: []danNeighbour{},
		},
	}
	n := &d.Network
	for _, a := range rec.Addresses {
		n.Interface.Addresses = append(n.Interface.Addresses, a.Prefix)
		if gw := a.Gateway; gw.IsValid() && !a.Prefix.Contains(gw) {
			n.Routes = append(n.Routes, danRoute{Dest: single(gw).String(), Scope: unix.RT_SCOPE_LINK}) // else nothing leads to it
		}
	}
	for _, r := range rec.Routes {
		n.Routes = append(n.Routes, danRouteOf(r))
	}
	for _, gw := range gateways(rec.Addresses) {
		n.Neighbors = append(n.Neighbors, danNeighbour{Address: single(gw), MAC: xdp.GatewayMAC.String(), State: unix.NUD_PERMANENT})
	}
	return d
}

func danRouteOf(r state.Route) danRoute {
	switch {
	case !r.GW.IsValid():
		return danRoute{Dest: r.Dst.String(), Scope: unix.RT_SCOPE_LINK}
	case r.Dst.Bits() == 0:
		return danRoute{Gateway: r.GW.String()}
	}
	return danRoute{Dest: r.Dst.String(), Gateway: r.GW.String()}
}

// danFindings compares the attachment's part of the file with what ADD wrote.
func danFindings(rec *state.Attachment) (f findings) {
	if rec.DAN == "" {
		return nil
	}
	what := fmt.Sprintf("DAN file %s: ", rec.DAN)
	file, err := readDAN(rec.DAN)
	if err != nil {
		return findings{fmt.Sprintf("DAN file: %v", err)}
	}
	f.differ(what+"netns", rec.Netns, file.Netns)
	for _, raw := range file.Devices {
		if id := identify(raw); id.Name != rec.IfName {
			continue
		}
		want, err := json.Marshal(danDeviceOf(rec))
		if err != nil {
			return append(f, what+err.Error())
		}
		var w, g any
		if json.Unmarshal(want, &w) != nil || json.Unmarshal(raw, &g) != nil || !reflect.DeepEqual(w, g) {
			f.differ(what+"device "+rec.IfName, string(want), compact(raw))
		}
		return f
	}
	return append(f, fmt.Sprintf("%sdevice %s is missing", what, rec.IfName))
}
