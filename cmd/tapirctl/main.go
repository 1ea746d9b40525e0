// Command tapirctl is the operator's view of tapir on one node: what is attached, what this node can do, what a guest must
// be told, and the clean-up. It exits 0 when all is well, 1 when it could not do what was asked, 2 for wrong usage and 3
// when it found something wrong.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// Exit codes; docs/operations.md names them.
const (
	exitFailed   = 1
	exitUsage    = 2
	exitFindings = 3
)

// errFindings ends a command that worked and found something wrong. What it found is printed already.
var errFindings = errors.New("findings")

// usageError is wrong usage.
type usageError struct{ error }

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	root := newRoot()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	var usage usageError
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errFindings):
		return exitFindings
	case errors.As(err, &usage):
		fmt.Fprintf(os.Stderr, "tapirctl: %v; see \"tapirctl --help\"\n", err)
		return exitUsage
	}
	fmt.Fprintln(os.Stderr, "tapirctl:", err)
	return exitFailed
}

// usageArgs makes cobra's complaints about arguments wrong usage.
func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usageError{err}
		}
		return nil
	}
}
