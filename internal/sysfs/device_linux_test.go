package sysfs_test

import (
	"errors"
	"os"
	"sync"
	"testing"

	"github.com/tapir-cni/tapir/internal/sysfs"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { testnode.Main(m) }

// newVeth makes a pair in a namespace of its own.
func newVeth(t *testing.T) (path string) {
	t.Helper()
	testnode.Require(t, "root")
	path = testnode.NewNetns(t)
	testnode.In(t, path, func() {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "there", MTU: 1234}, PeerName: "peer"}); err != nil {
			t.Fatal(err)
		}
	})
	return path
}

func open(t *testing.T, path string) *sysfs.Device {
	t.Helper()
	d, err := sysfs.Open(path, "there")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			t.Error(err)
		}
	})
	return d
}

func TestADeviceOfAnotherNamespaceIsReadAndWritten(t *testing.T) {
	d := open(t, newVeth(t))
	if _, err := os.Stat("/sys/class/net/there"); err == nil {
		t.Fatal("want no such device here")
	}
	if got, err := d.Read("mtu"); err != nil || got != "1234" {
		t.Errorf("mtu: want 1234, got %q, %v", got, err)
	}
	for _, want := range []string{"20000", "0", "7"} {
		if err := d.Write("gro_flush_timeout", want); err != nil {
			t.Fatal(err)
		}
		got, err := d.Read("gro_flush_timeout")
		number, numberErr := d.Number("gro_flush_timeout")
		if err = errors.Join(err, numberErr); err != nil || got != want || (number == 0) != (want == "0") {
			t.Errorf("want %s, got %q and %d, %v", want, got, number, err)
		}
	}
	if err := d.Write("queues/rx-0/rps_cpus", "1"); err != nil {
		t.Error(err)
	}
	if got, err := d.Read("queues/rx-0/rps_cpus"); err != nil || got != "1" {
		t.Errorf("rps_cpus: want 1, got %q, %v", got, err)
	}
	if err := d.Write("gro_flush_timeout", "soon"); !errors.Is(err, unix.EINVAL) {
		t.Errorf("want EINVAL, got %v", err)
	}
	if _, err := d.Read("none"); !errors.Is(err, unix.ENOENT) {
		t.Errorf("want ENOENT, got %v", err)
	}
}

func TestWhatIsNotThereIsAnError(t *testing.T) {
	path := newVeth(t)
	for _, tt := range []struct {
		path, name string
		want       error
	}{{path, "other", unix.ENOENT}, {path + "-none", "there", unix.ENOENT}, {path, "../net", nil}, {path, "", nil}} {
		d, err := sysfs.Open(tt.path, tt.name)
		if err == nil || tt.want != nil && !errors.Is(err, tt.want) {
			t.Errorf("%s in %s: want %v, got %v, %v", tt.name, tt.path, tt.want, d, err)
		}
	}
}

// One that is closed while others use it gives an error, and never reads a file of a descriptor that was given out again.
func TestCloseIsSafe(t *testing.T) {
	path := newVeth(t)
	for range 20 {
		d := open(t, path)
		var users sync.WaitGroup
		for range 4 {
			users.Go(func() {
				for range 200 {
					n, err := d.Number("mtu")
					if err == nil && n != 1234 || err != nil && !errors.Is(err, os.ErrClosed) {
						t.Errorf("want 1234 or %v, got %d, %v", os.ErrClosed, n, err)
						return
					}
				}
			})
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		users.Wait()
		for _, err := range []error{d.Close(), d.Write("mtu", "1"), second(d.Read("mtu"))} {
			if !errors.Is(err, os.ErrClosed) {
				t.Errorf("want %v, got %v", os.ErrClosed, err)
			}
		}
	}
}

func second(_ string, err error) error { return err }

// A device that went says so, and its folder can be let go of.
func TestADeviceThatGoes(t *testing.T) {
	path := newVeth(t)
	d := open(t, path)
	if _, err := d.Number("mtu"); err != nil {
		t.Fatal(err)
	}
	testnode.In(t, path, func() {
		l, err := netlink.LinkByName("there")
		if err != nil || netlink.LinkDel(l) != nil {
			t.Fatal("delete the veth", err)
		}
	})
	for _, err := range []error{second(d.Read("mtu")), numberErr(d.Number("mtu"))} {
		if !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.ENOENT) {
			t.Errorf("want ENODEV or ENOENT, got %v", err)
		}
	}
}

func numberErr(_ int, err error) error { return err }
