package main

import (
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/tapir-cni/tapir/internal/testnode"
)

func TestConnectionsAreTrackedWhenAskedFor(t *testing.T) {
	testnode.Require(t, "root")
	sendToSelf(t)
	if got := tracked(t); got != "0" {
		t.Fatalf("before: want no tracked connection, got %s", got)
	}
	if err := trackConnections(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("nft", "delete", "table", "inet", "bench").CombinedOutput(); err != nil {
			t.Errorf("nft: %v\n%s", err, out)
		}
	})
	sendToSelf(t)
	if got := tracked(t); got == "0" {
		t.Error("want a tracked connection, got none")
	}
}

func sendToSelf(t *testing.T) {
	t.Helper()
	c, err := net.Dial("udp4", "127.0.0.1:9")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

// tracked is the number of connections in the node's table; "0" too where it has never had one.
func tracked(t *testing.T) string {
	t.Helper()
	count, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_count")
	if os.IsNotExist(err) {
		return "0"
	}
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(count))
}
