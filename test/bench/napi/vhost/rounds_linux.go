package vhost

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/tapir-cni/tapir/test/bench/node"
)

// RoundsConfig says how [Rounds] measures.
type RoundsConfig struct {
	Bin     string // folder of tapir, tapir-ipam and tapirctl
	Testpmd string // default: dpdk-testpmd, looked up
	Rounds  int    // of each setting
	Bytes   int64  // payload measured in each round
	Warm    int64  // payload before it
	Rate    int64  // payload bytes a second that the sender keeps to; 0: as many as go
	Window  int    // bytes of the receiver's socket buffer
	Queue   int    // descriptors of the virtio rings
}

// Round is what one round measured.
type Round struct {
	NAPI     bool    `json:"napi"`     // what the kernel said of the queue while it ran
	Bytes    int64   `json:"bytes"`    // payload that the receiver read
	Seconds  float64 `json:"seconds"`  // for them
	Frames   int64   `json:"frames"`   // that vhost wrote to the TAP
	Packets  int64   `json:"packets"`  // that IP took in, frames that GRO merged being one
	Acks     int64   `json:"acks"`     // frames that went the other way
	Receiver float64 `json:"receiver"` // CPU seconds of the thread that reads the socket
	Vhost    float64 `json:"vhost"`    // CPU seconds of the vhost threads, the softirqs that they ran being in it
	Softirq  float64 `json:"softirq"`  // CPU seconds of ksoftirqd on their CPU
}

// CPUPerGB is what receiver, vhost and softirq thread spent on each GB (10^9 bytes) of payload, in CPU seconds.
func (r Round) CPUPerGB() float64 {
	return (r.Receiver + r.Vhost + r.Softirq) / float64(r.Bytes) * 1e9
}

// BytesPerPacket is the payload of one packet as TCP saw it.
func (r Round) BytesPerPacket() float64 { return float64(r.Bytes) / float64(max(r.Packets, 1)) }

// Mbps is the payload's rate.
func (r Round) Mbps() float64 { return float64(r.Bytes) * 8 / r.Seconds / 1e6 }

// Rounds measures on this machine, in namespaces of its own, and writes one [Round] a line to w as JSON, without NAPI and with in
// turn. It wants root, vhost-net, testpmd and a node of its own (package node).
func Rounds(ctx context.Context, c RoundsConfig, w io.Writer) error {
	if c.Testpmd == "" {
		c.Testpmd = "dpdk-testpmd"
	}
	bin, err := filepath.Abs(c.Bin)
	if err != nil {
		return err
	}
	c.Bin = bin
	if _, err = exec.LookPath(c.Testpmd); err != nil {
		return fmt.Errorf("%w; install dpdk-dev", err)
	}
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("open vhost-net: %w; load the module vhost_net", err)
	}
	f.Close()
	n, err := node.New()
	if err != nil {
		return fmt.Errorf("set up the node: %w", err)
	}
	s, err := newSetup(c, n)
	if err != nil {
		return err
	}
	out := json.NewEncoder(w)
	for i := range c.Rounds {
		for _, napi := range order(i) {
			r, err := s.round(ctx, napi)
			if err != nil {
				return fmt.Errorf("round %d, NAPI %v: %w", i+1, napi, err)
			}
			if err := out.Encode(r); err != nil {
				return err
			}
		}
	}
	return nil
}

// order alternates which setting goes first, so that what grows or cools with time meets both alike.
func order(round int) []bool {
	if round%2 == 0 {
		return []bool{false, true}
	}
	return []bool{true, false}
}
