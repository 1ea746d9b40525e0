package measure_test

import (
	"runtime"
	"testing"

	"github.com/tapir-cni/tapir/internal/testnode"
)

func TestMain(m *testing.M) { testnode.MainWithCommands(m, "tapir") }

// The process's first thread is the main goroutine's alone. Were it to make a sandbox's namespace, as package testnode does on a thread that ends, it
// would stay there, since it cannot end, and keep the namespace.
func init() { runtime.LockOSThread() }
