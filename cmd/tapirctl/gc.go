package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/tapir-cni/tapir/plugin"
)

// gcOptions are the flags of gc.
type gcOptions struct {
	live       string
	endpoint   string
	allowEmpty bool
	yes        bool
	grace      time.Duration
}

func newGC(o *options) *cobra.Command {
	var g gcOptions
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "Remove attachments of sandboxes that the runtime does not have any more",
		Long: `Remove attachments whose container id is not in the runtime's list of live sandboxes: what the CNI verb GC does, for
runtimes that never call it, such as containerd. The list comes from the runtime by crictl, or from --live, a file of
container ids, one a line ("-": standard input).

Attachments that are just being added, or younger than --grace, stay. Without --yes nothing is done: the command prints what it
would do.`,
		Example: `  tapirctl gc --runtime-endpoint unix:///run/containerd/containerd.sock
  ls /run/firecracker | tapirctl gc --live - --yes`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if (g.live == "") == (g.endpoint == "") {
				return usageError{errors.New("want one of --live and --runtime-endpoint")}
			}
			c := plugin.Collector{StateDirs: o.stateDirs, BPFFS: o.bpffs, Grace: g.grace, DryRun: !g.yes}
			report, err := c.Run(cmd.Context(), func(ctx context.Context) (map[string]bool, error) {
				return g.liveSandboxes(ctx, cmd.InOrStdin())
			})
			return printCleaned(cmd, o, report, "gc", err)
		},
	}
	f := cmd.Flags()
	f.StringVar(&g.live, "live", "", "file of live container ids, one a line; - for standard input")
	f.StringVar(&g.endpoint, "runtime-endpoint", "", "socket of the runtime, asked by crictl")
	f.BoolVar(&g.allowEmpty, "allow-empty", false, "believe an empty list")
	f.DurationVar(&g.grace, "grace", time.Minute, "keep attachments younger than this")
	f.BoolVar(&g.yes, "yes", false, "do it")
	return cmd
}

// liveSandboxes are the container ids that the runtime or the file names.
func (g *gcOptions) liveSandboxes(ctx context.Context, stdin io.Reader) (map[string]bool, error) {
	in := stdin
	switch {
	case g.endpoint != "":
		out, err := crictlPods(ctx, g.endpoint)
		if err != nil {
			return nil, err
		}
		in = bytes.NewReader(out)
	case g.live != "-":
		f, err := os.Open(g.live)
		if err != nil {
			return nil, fmt.Errorf("--live: %w", err)
		}
		defer f.Close()
		in = f
	}
	ids := map[string]bool{}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		if id := strings.TrimSpace(lines.Text()); id != "" {
			ids[id] = true
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read the live sandboxes: %w", err)
	}
	if len(ids) == 0 && !g.allowEmpty {
		return nil, errors.New("the list of live sandboxes is empty; --allow-empty if there is really none")
	}
	return ids, nil
}

// crictlPods lists the ids of all sandboxes that the runtime knows, a line each.
func crictlPods(ctx context.Context, endpoint string) ([]byte, error) {
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, "crictl", "--runtime-endpoint", endpoint, "pods", "--quiet", "--no-trunc")
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if errors.Is(err, exec.ErrNotFound) {
		return nil, errors.New("crictl is not in PATH; install cri-tools, or give the list by --live")
	}
	if err != nil {
		return nil, fmt.Errorf("crictl pods: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return out, nil
}
