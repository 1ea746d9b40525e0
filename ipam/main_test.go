package ipam

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tapir-cni/tapir/internal/jsonkeys"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/state"
)

// pluginEnv makes the test binary be tapir-ipam itself.
const pluginEnv = "TAPIR_IPAM_PLUGIN"

func TestMain(m *testing.M) {
	if os.Getenv(pluginEnv) != "" {
		Main()
		os.Exit(0)
	}
	if dir := os.Getenv(workerEnv); dir != "" {
		worker(dir)
		os.Exit(0)
	}
	testnode.Main(m)
}

func newStore(t testing.TB) *state.Store {
	t.Helper()
	return storeIn(filepath.Join(t.TempDir(), "tapir"))
}

// storeIn is a Store whose kernel knows of no attachment.
func storeIn(dir string) *state.Store {
	return state.New(state.Config{
		Dir: dir, LockWait: time.Minute, Logger: slog.New(slog.DiscardHandler),
		Rebuild: func(context.Context) ([]state.Attachment, error) { return nil, nil },
	})
}

func update(t testing.TB, s *state.Store, fn func(*state.Tx) error) {
	t.Helper()
	if err := s.Update(t.Context(), fn); err != nil {
		t.Fatalf("Update: %v", err)
	}
}

func key(i int) state.Key {
	return state.Key{Network: "net", ContainerID: fmt.Sprintf("c%d", i), IfName: "eth0"}
}

// settings validates a configuration that is right.
func settings(t testing.TB, c Config) Settings {
	t.Helper()
	s, faults := c.Validate()
	if len(faults) > 0 {
		t.Fatalf("configuration: %v", faults)
	}
	return s
}

// ranges is a configuration with a set for each subnet.
func ranges(subnets ...string) Config {
	var c Config
	for _, s := range subnets {
		c.Ranges = append(c.Ranges, []Range{{Subnet: s}})
	}
	return c
}

// addrs are the addresses of leases.
func addrs(leases []Lease) (list []netip.Addr) {
	for _, l := range leases {
		list = append(list, l.Prefix.Addr())
	}
	return list
}

// faultPaths are faults by their path.
func faultPaths(faults jsonkeys.Faults) map[string]string {
	m := map[string]string{}
	for _, f := range faults {
		m[f.Path] = f.Problem
	}
	return m
}
