// Package ping runs busybox's ping, in guests and on the node, and reads what it prints: what is measured is a real
// program's view.
package ping

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"regexp"
	"strconv"
	"time"

	"github.com/tapir-cni/tapir/internal/microvm/agentapi"
)

// Busybox is where Debian has it, and the guests' image too.
const Busybox = "/bin/busybox"

// Run sends echo requests in the caller's netns, the next as soon as one is answered. That no answer came is in the
// result and no error.
func Run(ctx context.Context, args agentapi.PingArgs) (agentapi.PingResult, error) {
	addr, err := netip.ParseAddr(args.Addr)
	if err != nil {
		return agentapi.PingResult{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, args.Timeout+time.Second)
	defer cancel()
	family := "-4"
	if addr.Is6() {
		family = "-6"
	}
	seconds := max(1, int(args.Timeout/time.Second))
	out, err := exec.CommandContext(ctx, Busybox, "ping", family, "-c", strconv.Itoa(args.Count), "-s", strconv.Itoa(args.Size),
		"-A", "-W", strconv.Itoa(seconds), "-w", strconv.Itoa(seconds), args.Addr).CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && (!ok || exit.ExitCode() != 1) {
		return agentapi.PingResult{}, fmt.Errorf("ping %s: %w: %s", args.Addr, err, out)
	}
	r, err := parse(string(out))
	if err != nil {
		return agentapi.PingResult{}, fmt.Errorf("ping %s: %w", args.Addr, err)
	}
	return r, nil
}

var (
	pingCounts = regexp.MustCompile(`(\d+) packets transmitted, (\d+) packets received`)
	pingTimes  = regexp.MustCompile(`round-trip min/avg/max = ([\d.]+)/([\d.]+)/([\d.]+) ms`)
)

func parse(out string) (agentapi.PingResult, error) {
	r := agentapi.PingResult{Output: out}
	m := pingCounts.FindStringSubmatch(out)
	if m == nil {
		return r, fmt.Errorf("no count in %q", out)
	}
	r.Sent, _ = strconv.Atoi(m[1])
	r.Received, _ = strconv.Atoi(m[2])
	if m := pingTimes.FindStringSubmatch(out); m != nil {
		for i, d := range []*time.Duration{&r.Min, &r.Avg, &r.Max} {
			ms, err := strconv.ParseFloat(m[i+1], 64)
			if err != nil {
				return r, err
			}
			*d = time.Duration(ms * float64(time.Millisecond))
		}
	}
	return r, nil
}
