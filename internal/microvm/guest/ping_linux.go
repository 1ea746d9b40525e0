package main

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

const busybox = "/bin/busybox"

// ping runs busybox's ping, so that what is measured is a real program's view. No answer is not an error.
func ping(args agentapi.PingArgs) (any, error) {
	addr, err := netip.ParseAddr(args.Addr)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), args.Timeout+time.Second)
	defer cancel()
	family := "-4"
	if addr.Is6() {
		family = "-6"
	}
	seconds := max(1, int(args.Timeout/time.Second))
	out, err := exec.CommandContext(ctx, busybox, "ping", family, "-c", strconv.Itoa(args.Count), "-s", strconv.Itoa(args.Size),
		"-A", "-W", strconv.Itoa(seconds), "-w", strconv.Itoa(seconds), args.Addr).CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && (!ok || exit.ExitCode() != 1) {
		return nil, fmt.Errorf("ping %s: %w: %s", args.Addr, err, out)
	}
	r, err := parsePing(string(out))
	if err != nil {
		return nil, fmt.Errorf("ping %s: %w", args.Addr, err)
	}
	return r, nil
}

var (
	pingCounts = regexp.MustCompile(`(\d+) packets transmitted, (\d+) packets received`)
	pingTimes  = regexp.MustCompile(`round-trip min/avg/max = ([\d.]+)/([\d.]+)/([\d.]+) ms`)
)

func parsePing(out string) (agentapi.PingResult, error) {
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
