package tuner

import (
	"runtime"
	"testing"

	"github.com/tapir-cni/tapir/internal/testnode"
)

func TestMain(m *testing.M) { testnode.MainWithCommands(m, "tapir", "tapird") }

// The process's first thread is the main goroutine's alone: in a sandbox's namespace, which package testnode makes on a thread that ends, it would
// stay, and keep the namespace.
func init() { runtime.LockOSThread() }
