package uplink

import (
	"testing"

	"github.com/tapir-cni/tapir/internal/testnode"
)

func TestMain(m *testing.M) { testnode.Main(m) }
