package ipam

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/tapir-cni/tapir/state"
)

// holdWait is how long an ADD waits for another one of the same attachment.
const holdWait = 5 * time.Second

func cmdAdd(args *skel.CmdArgs) (err error) {
	conf, settings, err := parseADD(args.StdinData)
	if err != nil {
		return err
	}
	ctx := context.Background()
	key := attachmentKey(conf, args)
	hold, err := state.AcquireHold(ctx, settings.StateDir, key, holdWait)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, hold.Release()) }()
	var leases []Lease
	err = state.New(state.Config{Dir: settings.StateDir}).Update(ctx, func(tx *state.Tx) (err error) {
		leases, err = Acquire(tx, Request{
			Key: key, Sets: settings.Sets, Addresses: requestedAddresses(conf, args.Args), ReuseDelay: settings.ReuseDelay,
			Pod: podOf(settings.Sticky, args.Args),
		})
		return err
	})
	if err != nil {
		return err
	}
	return types.PrintResult(result(leases, settings.Routes), conf.CNIVersion)
}

// result is the leases as an IPAM plugin's result: addresses without an interface.
func result(leases []Lease, routes []state.Route) *types100.Result {
	r := &types100.Result{CNIVersion: types100.ImplementedSpecVersion}
	for _, l := range leases {
		ip := &types100.IPConfig{Address: net.IPNet{
			IP: l.Prefix.Addr().AsSlice(), Mask: net.CIDRMask(l.Prefix.Bits(), l.Prefix.Addr().BitLen()),
		}}
		if l.Gateway.IsValid() {
			ip.Gateway = l.Gateway.AsSlice()
		}
		r.IPs = append(r.IPs, ip)
	}
	for _, route := range routes {
		to := &types.Route{Dst: net.IPNet{
			IP: route.Dst.Addr().AsSlice(), Mask: net.CIDRMask(route.Dst.Bits(), route.Dst.Addr().BitLen()),
		}}
		if route.GW.IsValid() {
			to.GW = route.GW.AsSlice()
		}
		r.Routes = append(r.Routes, to)
	}
	return r
}

func cmdDel(args *skel.CmdArgs) error {
	conf, store, err := parseDEL(args.StdinData)
	if err != nil {
		return err
	}
	pod := podOf(Sticky(conf.IPAM), args.Args)
	return store.UpdateExisting(context.Background(), func(tx *state.Tx) error {
		key := attachmentKey(conf, args)
		if err := tx.NamePod(key, pod); err != nil {
			return err
		}
		return Release(tx, key)
	})
}

func cmdCheck(args *skel.CmdArgs) error {
	conf, store, err := parseDEL(args.StdinData)
	if err != nil {
		return err
	}
	given, err := prevAddresses(conf.PrevResult)
	if err != nil {
		return err
	}
	return store.View(context.Background(), func(tx *state.Tx) error { return CheckLease(tx, attachmentKey(conf, args), given) })
}

// CheckLease tells whether the attachment has a lease whose addresses are all among given; nil does not compare them.
func CheckLease(tx *state.Tx, key state.Key, given []netip.Prefix) error {
	l, ok, err := tx.Lease(key)
	if err != nil {
		return err
	}
	if !ok {
		return types.NewError(types.ErrUnknownContainer, fmt.Sprintf("check lease: attachment %q has none", key), "")
	}
	for _, address := range l.Addresses {
		user, err := tx.AddressUser(address.Prefix.Addr())
		if err != nil {
			return err
		}
		if user.Status != state.AddressLeased || user.Holder != key {
			return types.NewError(types.ErrInternal, fmt.Sprintf("check lease: address %s is not leased to attachment %q", address.Prefix.Addr(), key), "")
		}
		found := given == nil
		for _, p := range given {
			found = found || p.Addr() == address.Prefix.Addr()
		}
		if !found {
			return types.NewError(types.ErrInternal, fmt.Sprintf("check lease: attachment %q has %s, and prevResult has %v", key, address.Prefix, given), "")
		}
	}
	return nil
}

// prevAddresses are the addresses of a prevResult; nil where there is no prevResult.
func prevAddresses(raw json.RawMessage) ([]netip.Prefix, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	// The same in all versions that know CHECK.
	var prev struct {
		IPs []struct {
			Address netip.Prefix `json:"address"`
		} `json:"ips"`
	}
	if err := json.Unmarshal(raw, &prev); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, fmt.Sprintf("decode prevResult: %v", err), "")
	}
	addresses := []netip.Prefix{}
	for _, ip := range prev.IPs {
		addresses = append(addresses, ip.Address)
	}
	return addresses, nil
}

// cmdStatus says whether an ADD could use the state. Exhausted ranges are no reason: a node that is not ready has its
// pods evicted, which is no way to get addresses back.
func cmdStatus(args *skel.CmdArgs) error {
	_, store, err := parseDEL(args.StdinData)
	if err != nil {
		return err
	}
	if err := store.Check(context.Background()); err != nil {
		return types.NewError(types.ErrPluginNotAvailable, err.Error(), "")
	}
	return nil
}

// cmdGC releases what the network leased to attachments that the runtime does not know, but for those that are being
// added and for those whose devices tapir has on record, which its own GC removes first.
func cmdGC(args *skel.CmdArgs) error {
	conf, store, err := parseDEL(args.StdinData)
	if err != nil {
		return err
	}
	valid, err := validAttachments(conf)
	if err != nil {
		return err
	}
	return store.UpdateExisting(context.Background(), func(tx *state.Tx) error {
		var errs []error
		err := tx.ForEachLease(conf.Name, func(l state.Lease) error {
			if valid[l.Key] || state.Held(store.Dir(), l.Key) {
				return nil
			}
			if _, attached, err := tx.Attachment(l.Key); err != nil || attached {
				return err
			}
			errs = append(errs, Release(tx, l.Key))
			return nil
		})
		return errors.Join(append(errs, err)...)
	})
}

// validAttachments reads cni.dev/valid-attachments. Without the key nothing is known of what is valid, which is not
// the same as that nothing is.
func validAttachments(conf netConf) (map[state.Key]bool, error) {
	if conf.ValidAttachments == nil {
		return nil, types.NewError(types.ErrInvalidNetworkConfig,
			`cni.dev/valid-attachments: want a list, got none; without it all leases would be released`, "")
	}
	var list []types.GCAttachment
	if err := json.Unmarshal(conf.ValidAttachments, &list); err != nil {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("cni.dev/valid-attachments: %v", err), "")
	}
	valid := map[state.Key]bool{}
	for _, a := range list {
		valid[state.Key{Network: conf.Name, ContainerID: a.ContainerID, IfName: a.IfName}] = true
	}
	return valid, nil
}
