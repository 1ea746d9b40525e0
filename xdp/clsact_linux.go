package xdp

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The filter's place in the ingress chain is tapir's own, so that no other software's "replace" or "delete by priority"
// hits it: a priority holds filters of one kind and protocol.
const (
	filterPriority = 84 // 'T'
	filterHandle   = 1

	// The filter's name, as `tc filter show` prints it. It also remembers whose the clsact qdisc is, since nothing else
	// in the kernel does.
	filterName     = "tapir"
	ownQdiscSuffix = ":clsact"
)

func clsact(ifindex int) netlink.Qdisc {
	return &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: ifindex,
		Handle:    netlink.MakeHandle(0xffff, 0),
		Parent:    netlink.HANDLE_CLSACT,
	}}
}

func attachClsact(prog *ebpf.Program, ifindex int) error {
	err := attachFilter(prog, ifindex, filterPriority, filterHandle, filterName)
	if errors.Is(err, unix.EEXIST) {
		attached, lookErr := attachedClsact(prog, ifindex)
		if attached || lookErr != nil {
			return lookErr
		}
		return fmt.Errorf("priority %d is taken: %w; detach it first", filterPriority, err)
	}
	return err
}

// attachFilter adds a filter to the ingress qdisc of a device, whosever it is, or to a clsact qdisc of our own; the name
// says which.
func attachFilter(prog *ebpf.Program, ifindex int, priority uint16, handle uint32, name string) error {
	// EEXIST says that there is a clsact or ingress qdisc already.
	err := netlink.QdiscAdd(clsact(ifindex))
	if errors.Is(err, unix.ENOENT) {
		return &UnsupportedError{Feature: "clsact", Needs: "CONFIG_NET_SCH_INGRESS", Err: err}
	}
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add clsact qdisc: %w", err)
	}
	own := err == nil
	if own {
		name += ownQdiscSuffix
	}
	err = netlink.FilterAdd(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: ifindex,
			Parent:    netlink.HANDLE_MIN_INGRESS,
			Handle:    handle,
			Protocol:  unix.ETH_P_ALL,
			Priority:  priority,
		},
		Fd:           prog.FD(),
		Name:         name,
		DirectAction: true,
	})
	if err == nil {
		return nil
	}
	if own {
		err = errors.Join(err, netlink.QdiscDel(clsact(ifindex)))
	}
	if errors.Is(err, unix.ENOENT) {
		return &UnsupportedError{Feature: "BPF filters", Needs: "CONFIG_NET_CLS_BPF", Err: err}
	}
	return fmt.Errorf("add filter: %w", err)
}

// ownFilter finds tapir's filter of any version on a device's ingress; nil where there is none, or no device.
func ownFilter(ifindex int) (*netlink.BpfFilter, error) {
	return findFilter(ifindex, filterPriority, filterHandle, filterName)
}

func findFilter(ifindex int, priority uint16, handle uint32, name string) (*netlink.BpfFilter, error) {
	filters, err := ingressFilters(ifindex, netlink.HANDLE_MIN_INGRESS)
	if err != nil {
		return nil, err
	}
	for _, f := range filters {
		b, ok := f.(*netlink.BpfFilter)
		if ok && b.Priority == priority && b.Handle == handle && strings.HasPrefix(b.Name, name) {
			return b, nil
		}
	}
	return nil, nil
}

func ingressFilters(ifindex int, parent uint32) ([]netlink.Filter, error) {
	dev := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: ifindex}}
	filters, err := netlink.FilterList(dev, parent)
	if err != nil {
		return nil, fmt.Errorf("list filters: %w", err)
	}
	return filters, nil
}

func attachedClsact(prog *ebpf.Program, ifindex int) (bool, error) {
	id, err := programID(prog)
	if err != nil {
		return false, err
	}
	f, err := ownFilter(ifindex)
	return f != nil && f.Id == int(id), err
}

func detachClsact(prog *ebpf.Program, ifindex int) error {
	id, err := programID(prog)
	if err != nil {
		return err
	}
	f, err := ownFilter(ifindex)
	if f == nil || err != nil || f.Id != int(id) {
		return err
	}
	return deleteFilter(f, ifindex)
}

// deleteFilter deletes a filter of tapir's, and the qdisc where that was tapir's too and nobody else's filters hang on it.
func deleteFilter(f *netlink.BpfFilter, ifindex int) error {
	f.LinkIndex = ifindex
	if err := netlink.FilterDel(f); err != nil && !gone(err) {
		return fmt.Errorf("delete filter: %w", err)
	}
	if !strings.HasSuffix(f.Name, ownQdiscSuffix) {
		return nil
	}
	for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		filters, err := ingressFilters(ifindex, parent)
		if err != nil || len(filters) > 0 {
			return err
		}
	}
	if err := netlink.QdiscDel(clsact(ifindex)); err != nil && !gone(err) {
		return fmt.Errorf("delete clsact qdisc: %w", err)
	}
	return nil
}

func gone(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) }
