package install_test

import (
	"testing"

	"github.com/tapir-cni/tapir/internal/testnode"
)

func TestMain(m *testing.M) {
	testnode.MainWithCommands(m, "tapir", "tapir-ipam", "tapirctl", "tapird")
}
