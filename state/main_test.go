package state

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/internal/testnode"
)

// helperEnv makes the test binary act as another process of a test: it names one of helpers.
const helperEnv = "TAPIR_STATE_HELPER"

// helpers are what the test binary does as another process; the state directory is its argument.
var helpers = map[string]func(dir string){}

func TestMain(m *testing.M) {
	if helper, ok := helpers[os.Getenv(helperEnv)]; ok {
		helper(os.Args[1])
		os.Exit(0)
	}
	testnode.Main(m)
}

// newStore is a Store on a new directory, with a kernel that knows the attachments found.
func newStore(t testing.TB, found ...Attachment) *Store {
	t.Helper()
	return storeIn(filepath.Join(t.TempDir(), "tapir"), found...)
}

func storeIn(dir string, found ...Attachment) *Store {
	return New(Config{
		Dir: dir, LockWait: 2 * time.Second, Logger: slog.New(slog.DiscardHandler),
		Rebuild: func(context.Context) ([]Attachment, error) { return found, nil },
	})
}

// startHelper starts a helper in the directory, waits until it says that it is where it should be, and ends it, if
// it has not ended, with the test.
func startHelper(t testing.TB, name, dir string, env ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, dir)
	cmd.Env = append(append(os.Environ(), helperEnv+"="+name), env...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	})
	if _, err := io.ReadFull(out, make([]byte, 1)); err != nil {
		t.Fatalf("helper %s did not get ready: %v", name, err)
	}
	return cmd
}

func update(t testing.TB, s *Store, fn func(*Tx) error) {
	t.Helper()
	if err := s.Update(t.Context(), fn); err != nil {
		t.Fatalf("Update: %v", err)
	}
}

func view(t testing.TB, s *Store, fn func(*Tx) error) {
	t.Helper()
	if err := s.View(t.Context(), fn); err != nil {
		t.Fatalf("View: %v", err)
	}
}

func key(i int) Key {
	return Key{Network: "net", ContainerID: fmt.Sprintf("%064d", i), IfName: "eth0"}
}

func attachment(i int) Attachment {
	return Attachment{
		Key: key(i), Status: Ready, Created: time.Unix(1700000000, 0).UTC(), Placement: "pod", MTU: 1500,
		GuestMAC:  fmt.Sprintf("02:00:00:%02x:%02x:%02x", i>>16&0xff, i>>8&0xff, i&0xff),
		Host:      Device{Name: fmt.Sprintf("tpr%d", i), Index: 1<<20 + i},
		Addresses: []Address{address(i)},
	}
}

// address is the i-th of 10.0.0.0/8.
func address(i int) Address {
	addr := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
	return Address{Prefix: netip.PrefixFrom(addr, 8), Gateway: netip.MustParseAddr("10.255.255.254")}
}

func lease(i int) Lease {
	return Lease{Key: key(i), Addresses: []Address{address(i)}, Acquired: time.Unix(1700000000, 0).UTC()}
}

// fillStore records n attachments with their leases, every second address used.
func fillStore(t testing.TB, s *Store, n int) {
	t.Helper()
	update(t, s, func(tx *Tx) error {
		for i := range n {
			if err := tx.Put(attachment(2 * i)); err != nil {
				return err
			}
			if err := tx.PutLease(lease(2 * i)); err != nil {
				return err
			}
		}
		return nil
	})
}
