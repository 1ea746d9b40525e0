// Package vm_test boots real microVMs on TAPs that the plugin made through the CNI protocol, configures the guests from
// the result alone, and moves real traffic: what the black-box tests of test/cni show with stand-ins, shown with QEMU and
// a guest's own kernel.
package vm_test

import (
	"testing"

	"github.com/tapir-cni/tapir/internal/microvm/vmtest"
)

func TestMain(m *testing.M) { vmtest.Main(m, "tapir", "tapir-ipam", "tapirctl", "tapird") }
