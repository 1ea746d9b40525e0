package cni_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"testing"

	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// qemuUID is the user that KubeVirt's launcher, libvirt and QEMU run as; its group has the same number.
const qemuUID = 107

// kubeVirtTap is the name that a binding plugin with domainAttachmentType "tap" must leave in the launcher's netns: tap0 for the primary
// interface, else tap and the hash of the network's name that the pod's interface has as well (pkg/network/namescheme).
func kubeVirtTap(network string) string {
	if network == "" {
		return "tap0"
	}
	sum := sha256.Sum256([]byte(network))
	return ("tap" + hex.EncodeToString(sum[:]))[:14]
}

// libvirt opens the TAP by name with managed='no', as 107:107 and without capabilities, and hands it to QEMU: with IFF_MULTI_QUEUE if
// and only if the domain has more than one queue.
func TestKubeVirtBinding(t *testing.T) {
	n := newNode(t)
	for i, tt := range []struct {
		network string
		ifName  string
		queues  int
		flags   uint16
	}{
		{"", "eth0", 1, qemuFlags},
		{"", "eth0", 4, qemuMQFlags},
		{"red", "pod16477688c0e", 2, qemuMQFlags},
	} {
		name := kubeVirtTap(tt.network)
		p := n.pod(fmt.Sprint("launcher", i), conf(object{"vmm": "qemu", "owner": qemuUID, "group": qemuUID, "queues": tt.queues, "tapName": name}))
		p.ifName = tt.ifName
		r := p.add()
		l := tapLink(t, p.netns, name)
		if mq := l.Flags&netlink.TUNTAP_MULTI_QUEUE != 0; mq != (tt.queues > 1) || l.Owner != qemuUID || l.Group != qemuUID || l.NonPersist {
			t.Errorf("%s: multi_queue %t, owner %d:%d, persistent %t", name, mq, l.Owner, l.Group, !l.NonPersist)
		}
		for _, who := range []struct {
			uid, gid int
			want     error
		}{{qemuUID, qemuUID, nil}, {qemuUID + 1, qemuUID + 1, unix.EPERM}, {qemuUID, qemuUID + 1, unix.EPERM}, {qemuUID + 1, qemuUID, unix.EPERM}} {
			var got error
			testnode.In(t, p.netns, func() { got = openAsGroup(who.uid, who.gid, name, tt.flags) })
			if !errors.Is(got, who.want) {
				t.Errorf("%s: %d:%d opens it: %v, want %v", name, who.uid, who.gid, got, who.want)
			}
		}
		// The other number of queues would fail the domain, so it must not pass by chance.
		var wrong error
		testnode.In(t, p.netns, func() { wrong = openAsGroup(qemuUID, qemuUID, name, tt.flags^unix.IFF_MULTI_QUEUE) })
		if !errors.Is(wrong, unix.EINVAL) {
			t.Errorf("%s: opened with the other flags: %v, want EINVAL", name, wrong)
		}
		boot(p, r).wantPing(nodeIP4, nodeIP6)
		p.works("CHECK", nil)
	}
}

// openAsGroup is openAs with a group.
func openAsGroup(uid, gid int, name string, flags uint16) (err error) {
	if err := setThreadGroup(gid); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, setThreadGroup(0)) }()
	return openAs(uid, name, flags)
}

// setThreadGroup sets the effective gid of the calling thread alone.
func setThreadGroup(gid int) error {
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, ^uintptr(0), uintptr(gid), ^uintptr(0)); errno != 0 {
		return errno
	}
	return nil
}
