package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/tapir-cni/tapir/agent/broker"
	"github.com/tapir-cni/tapir/agent/client"
	"github.com/tapir-cni/tapir/tap"
	"golang.org/x/sys/unix"
)

// Exit codes of a VMM that could not be started, as in a shell.
const (
	exitNotExecutable = 126
	exitNoProgram     = 127
)

// fdsOptions are the flags of fds.
type fdsOptions struct {
	attachment string
	network    string
	queues     int
	direct     bool
	socket     string
	wait       time.Duration
}

func newFDs(o *options) *cobra.Command {
	f := &fdsOptions{}
	cmd := &cobra.Command{
		Use:   "fds --attachment CONTAINER-ID/IFNAME [flags] -- VMM [ARG...]",
		Short: "Become a VMM that has the open queues of its TAP, with NAPI on each",
		Long: `Get the queues of an attachment from tapird and execute VMM with them, in place of this process. In its arguments {fds} becomes their
numbers as QEMU takes them (3:4) and {fd} as Cloud Hypervisor does ([3,4]). The container id is to be whole. With --direct this
process, which must be root, opens them itself and no tapird is needed; the id may be cut. 127 means that there is no
such program, 126 that it is not executable. docs/tapird.md has more.`,
		Example: `  tapirctl fds --attachment 7f3a…/eth0 -- qemu-system-x86_64 -netdev tap,id=n0,fds={fds} -device virtio-net-pci,netdev=n0,mq=on …
  tapirctl fds --attachment 7f3a…/eth0 -- cloud-hypervisor --net fd={fd},num_queues=4,mac=… …`,
		Args: usageArgs(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(args); err != nil {
				return usageError{err}
			}
			return runFDs(cmd.Context(), o, f, args)
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false) // what follows VMM is VMM's
	flags.StringVar(&f.attachment, "attachment", "", "whose queues: CONTAINER-ID/IFNAME")
	flags.StringVar(&f.network, "network", "", "its network, where several have that attachment; not with --direct")
	flags.IntVar(&f.queues, "queues", 0, "how many; 0: as many as the TAP was made for")
	flags.BoolVar(&f.direct, "direct", false, "open them without tapird")
	flags.StringVar(&f.socket, "socket", client.DefaultSocket, "tapird's socket")
	flags.DurationVar(&f.wait, "wait", 2*time.Second, "how long to wait for a tapird that is not there")
	return cmd
}

func (f *fdsOptions) check(argv []string) error {
	id, ifName, _ := strings.Cut(f.attachment, "/")
	switch {
	case id == "" || ifName == "":
		return fmt.Errorf("--attachment: want CONTAINER-ID/IFNAME, got %q", f.attachment)
	case f.queues < 0 || f.queues > tap.MaxQueues:
		return fmt.Errorf("--queues: want 1 to %d, or 0 for all, got %d", tap.MaxQueues, f.queues)
	case f.direct && f.network != "":
		return errors.New("--network: want it without --direct")
	}
	for _, arg := range argv[1:] {
		if strings.Contains(arg, "{fds}") || strings.Contains(arg, "{fd}") {
			return nil
		}
	}
	return errors.New("want {fds} or {fd} among the VMM's arguments, got neither: it would not know its queues")
}

// runFDs returns only where the VMM did not start.
func runFDs(ctx context.Context, o *options, f *fdsOptions, argv []string) error {
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return notStarted(argv[0], err)
	}
	var fds []int
	if f.direct {
		fds, err = openDirect(ctx, o, f)
	} else {
		fds, err = askTapird(ctx, f)
	}
	if err != nil {
		return err
	}
	for _, fd := range fds {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
			return fmt.Errorf("keep descriptor %d open for the VMM: %w", fd, err)
		}
	}
	return notStarted(path, unix.Exec(path, withFDs(argv, fds), os.Environ()))
}

func openDirect(ctx context.Context, o *options, f *fdsOptions) ([]int, error) {
	rec, err := find(ctx, o, f.attachment)
	if err != nil {
		return nil, err
	}
	q, _, err := broker.Open(rec.Attachment, f.queues)
	if err != nil {
		return nil, err
	}
	return q.FDs(), nil
}

func askTapird(ctx context.Context, f *fdsOptions) ([]int, error) {
	id, ifName, _ := strings.Cut(f.attachment, "/")
	c := client.Client{Socket: f.socket, Wait: f.wait}
	q, err := c.Queues(ctx, client.Request{Network: f.network, ContainerID: id, IfName: ifName, Queues: f.queues})
	if err != nil {
		return nil, err
	}
	return q.FDs, nil
}

// withFDs puts the descriptors' numbers into the arguments.
func withFDs(argv []string, fds []int) []string {
	texts := make([]string, len(fds))
	for i, fd := range fds {
		texts[i] = strconv.Itoa(fd)
	}
	replace := strings.NewReplacer("{fds}", strings.Join(texts, ":"), "{fd}", "["+strings.Join(texts, ",")+"]")
	out := []string{argv[0]}
	for _, arg := range argv[1:] {
		out = append(out, replace.Replace(arg))
	}
	return out
}

// notStarted ends this process as a shell does whose command it could not start.
func notStarted(program string, err error) error {
	fmt.Fprintf(os.Stderr, "tapirctl: start %q: %v\n", program, err)
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		os.Exit(exitNoProgram)
	}
	os.Exit(exitNotExecutable)
	return err
}
