package vhost

import (
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/tapir-cni/tapir/internal/supervise"
	"golang.org/x/sys/unix"
)

// First arguments with which [Rounds] runs its own program.
const (
	stripCommand = "without-napi"
	childCommand = "without-napi-child"
)

// Command does what the first argument asks for where [Rounds] has run this program again, and then does not return. A main that
// calls Rounds calls it first.
func Command() {
	if len(os.Args) < 3 {
		return
	}
	switch os.Args[1] {
	case childCommand:
		supervise.Child(os.Args[2:])
		os.Exit(1) // the parent has been told why
	case stripCommand:
		if err := strip(os.Args[2:]); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", stripCommand, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// strip runs a program that opens TAPs without NAPI even where it asks for it, as testpmd does on a kernel that has it
// (DPDK, drivers/net/virtio/virtio_user/vhost_kernel_tap.c). So both settings are supervised by the same mechanism.
func strip(argv []string) error {
	status, err := supervise.Run(supervise.Config{
		Decide: func(a supervise.Ask) (supervise.Answer, error) {
			return supervise.Answer{Supervise: true, Attachment: a.Name, Flags: a.Flags &^ unix.IFF_NAPI}, nil
		},
		Logger:    slog.New(slog.DiscardHandler),
		ChildArgs: []string{childCommand},
	}, argv)
	if err != nil {
		return err
	}
	if status.Signaled() || status.ExitStatus() != 0 {
		return errors.New("the program did not end well")
	}
	return nil
}
