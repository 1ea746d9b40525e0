package cni_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// tunFlags asks the driver for a TAP's flags by TUNGETIFF on a queue that is opened for it, and closed.
func tunFlags(t testing.TB, netns, name string, openFlags uint16) uint16 {
	t.Helper()
	fd, err := openQueue(t, netns, name, openFlags)
	if err != nil {
		t.Fatalf("open %q with %s: %v", name, flagNames(openFlags), err)
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq(name)
	if err == nil {
		err = unix.IoctlIfreq(fd, unix.TUNGETIFF, ifr)
	}
	if err != nil {
		t.Fatal(err)
	}
	return ifr.Uint16()
}

// tapLink is the kernel's view of a TAP by rtnetlink, which opens no queue.
func tapLink(t testing.TB, netns, name string) (l *netlink.Tuntap) {
	t.Helper()
	testnode.In(t, netns, func() {
		var ok bool
		if l, ok = link(t, name).(*netlink.Tuntap); !ok {
			t.Fatalf("%s is no TAP", name)
		}
	})
	return l
}

func TestQueuesMakeFlags(t *testing.T) {
	n := newNode(t)
	for _, tt := range []struct {
		queues int // all of which can be open at once
		right  uint16
		wrong  uint16
		mq     bool
	}{
		{1, firecrackerFlags, qemuMQFlags, false},
		{2, qemuMQFlags, qemuFlags, true},
		{256, qemuMQFlags, qemuFlags, true},
	} {
		t.Run(fmt.Sprint(tt.queues), func(t *testing.T) {
			p := n.pod(fmt.Sprint("q", tt.queues), conf(object{"queues": tt.queues}))
			p.add()
			l := tapLink(t, p.netns, "tap-eth0")
			if got := l.Flags&netlink.TUNTAP_MULTI_QUEUE != 0; got != tt.mq || l.NonPersist {
				t.Errorf("rtnetlink: multi_queue %t, want %t; persistent %t, want true", got, tt.mq, !l.NonPersist)
			}
			// Opening must not change the flags: the first open overwrites them, so right flags must be read as right.
			const noise = unix.IFF_PERSIST | 0x0800 // IFF_NOFILTER
			if got := tunFlags(t, p.netns, "tap-eth0", tt.right); got&^noise != tt.right || got&unix.IFF_PERSIST == 0 {
				t.Errorf("TUNGETIFF: flags %s, want %s|PERSIST", flagNames(got), flagNames(tt.right))
			}
			if _, err := openQueue(t, p.netns, "tap-eth0", tt.wrong); !errors.Is(err, unix.EINVAL) {
				t.Errorf("open with %s: %v, want EINVAL", flagNames(tt.wrong), err)
			}
			var open []int
			defer func() {
				for _, fd := range open {
					unix.Close(fd)
				}
			}()
			for range tt.queues {
				fd, err := openQueue(t, p.netns, "tap-eth0", tt.right)
				if err != nil {
					t.Fatalf("open queue %d: %v", len(open), err)
				}
				open = append(open, fd)
			}
		})
	}
}

func TestOwnerAndGroup(t *testing.T) {
	n := newNode(t)
	const none = -1 // the driver's word for "not restricted"
	for i, tt := range []struct {
		name         string
		over         object
		args         string
		owner, group int
	}{
		{"neither", nil, "", 0, none},
		{"owner", object{"owner": 1000}, "", 1000, none},
		{"group", object{"group": 107}, "", none, 107},
		{"both", object{"owner": 1000, "group": 107}, "", 1000, 107},
		{"owner 0 and group", object{"owner": 0, "group": 107}, "", 0, 107},
		{"TAP_OWNER", nil, "TAP_OWNER=1001", 1001, none},
		{"TAP_GROUP", nil, "TAP_GROUP=108", none, 108},
		{"both by args over the configuration's", object{"owner": 1, "group": 2}, "TAP_OWNER=1001;TAP_GROUP=108", 1001, 108},
		{"names of tc-redirect-tap", nil, "TC_REDIRECT_TAP_UID=1002;TC_REDIRECT_TAP_GID=109;TC_REDIRECT_TAP_NAME=tapx", 1002, 109},
	} {
		p := n.pod(fmt.Sprint("o", i), conf(tt.over))
		p.args = tt.args
		p.add()
		name := "tap-eth0"
		if strings.Contains(tt.args, "tapx") {
			name = "tapx"
		}
		testnode.In(t, p.netns, func() {
			got := sysfs(t, name, "owner") + " " + sysfs(t, name, "group")
			if want := fmt.Sprint(tt.owner, " ", tt.group); got != want {
				t.Errorf("%s: owner and group %s, want %s", tt.name, got, want)
			}
		})
		p.works("CHECK", nil)
	}
}

// The kernel lets whoever matches owner and group attach, and nobody else.
func TestOwnerOpensTapWithoutPrivilege(t *testing.T) {
	n := newNode(t)
	p := n.pod("c1", conf(object{"owner": 1000}))
	p.add()
	for uid, want := range map[int]error{1000: nil, 1001: unix.EPERM} {
		var got error
		testnode.In(t, p.netns, func() { got = openAs(uid, "tap-eth0", firecrackerFlags) })
		if !errors.Is(got, want) {
			t.Errorf("uid %d opens the TAP of uid 1000: %v, want %v", uid, got, want)
		}
	}
}

// openAs opens and closes a queue on the calling thread as that user, without capabilities. The device node is opened
// before: who may do that is not the TAP's affair.
func openAs(uid int, name string, flags uint16) (err error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	ifr.SetUint16(flags)
	if err := setThreadIDs(uid); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, setThreadIDs(0)) }()
	return unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
}

// setThreadIDs sets the effective uid of the calling thread alone; away from 0 the kernel drops effective capabilities.
func setThreadIDs(uid int) error {
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); errno != 0 {
		return errno
	}
	return nil
}

// A VMM may open the TAP as soon as it has the result: it must not meet a queue that the plugin still has open.
func TestTapOpensTheMomentTheResultIsPrinted(t *testing.T) {
	n := newNode(t)
	kinds := []struct {
		vmm    string
		queues int
		flags  uint16
	}{{"qemu", 1, qemuFlags}, {"qemu", 2, qemuMQFlags}, {"firecracker", 1, firecrackerFlags}}
	p := n.pod("c1", nil)
	var slowest time.Duration
	for i := range 100 {
		kind := kinds[i%len(kinds)]
		p.conf = conf(object{"vmm": kind.vmm, "queues": kind.queues, "ipam": ranges("10.9.0.0/16")})
		// The netns is that of the open(), so only TUNSETIFF is left to do.
		var fd int
		testnode.In(t, p.netns, func() {
			var err error
			if fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err != nil {
				t.Fatal(err)
			}
		})
		ifr, err := unix.NewIfreq("tap-eth0")
		if err != nil {
			t.Fatal(err)
		}
		ifr.SetUint16(kind.flags)
		end := p.addUntilResult()
		printed := time.Now()
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr)
		slowest = max(slowest, time.Since(printed))
		if err != nil {
			t.Errorf("ADD %d: %s opens its %d queues right after the result: %v", i, kind.vmm, kind.queues, err)
		}
		if kind.queues == 1 {
			// A control: had somebody the queue open, this is what the VMM would have got.
			if _, err := openQueue(t, p.netns, "tap-eth0", kind.flags); !errors.Is(err, unix.EBUSY) {
				t.Errorf("a second open of a single-queue TAP: %v, want EBUSY", err)
			}
		}
		_ = unix.Close(fd)
		end()
		p.works("DEL", nil)
	}
	t.Logf("the slowest open took %s", slowest)
}

// addUntilResult runs ADD and comes back when the whole result has been read; the function that it gives waits for the
// process.
func (p *pod) addUntilResult() (end func()) {
	t := p.n.t
	t.Helper()
	cmd := exec.Command(filepath.Join(os.Getenv(binDirEnv), "tapir"))
	cmd.Env = p.env("ADD")
	cmd.Stdin = bytes.NewReader(marshal(t, p.conf))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.n.start(cmd)
	var result struct{ Code uint }
	if err := json.NewDecoder(out).Decode(&result); err != nil || result.Code != 0 {
		t.Fatalf("ADD: code %d (%v)", result.Code, err)
	}
	return func() {
		if err := cmd.Wait(); err != nil {
			t.Errorf("ADD: %v", err)
		}
	}
}
