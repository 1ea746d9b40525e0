package cluster_test

import (
	"testing"

	"github.com/tapir-cni/tapir/test/cluster/harness"
)

func TestHarness(t *testing.T) {
	c := up(t, harness.Options{Nodes: 2})
	out, err := kubectl(c, "get nodes -o wide")
	t.Log(out, err)
}
