package microvm

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/tapir-cni/tapir/internal/microvm/agentapi"
)

// answerTime is what the console is given beyond an operation's own timeout.
const answerTime = 20 * time.Second

func (vm *VM) call(ctx context.Context, limit time.Duration, op string, args, result any) error {
	ctx, cancel := context.WithTimeout(ctx, limit+answerTime)
	defer cancel()
	if err := vm.console.call(ctx, op, args, result); err != nil {
		return fmt.Errorf("microVM %s: %s: %w", vm.name, op, err)
	}
	return nil
}

// Info is how the guest sees itself now.
func (vm *VM) Info(ctx context.Context) (agentapi.Info, error) {
	var i agentapi.Info
	return i, vm.call(ctx, 0, agentapi.OpInfo, nil, &i)
}

// Ping has the guest send count echo requests of size payload bytes. That no answer came is in the result and no error.
func (vm *VM) Ping(ctx context.Context, to netip.Addr, size, count int, timeout time.Duration) (agentapi.PingResult, error) {
	var r agentapi.PingResult
	args := agentapi.PingArgs{Addr: to.String(), Size: size, Count: count, Timeout: timeout}
	return r, vm.call(ctx, timeout, agentapi.OpPing, args, &r)
}

// Upload has the guest send n bytes of the stream of seed to the transfer server at to.
func (vm *VM) Upload(ctx context.Context, to netip.Addr, seed uint64, n int64, timeout time.Duration) (agentapi.Transfer, error) {
	return vm.transfer(ctx, agentapi.TransferArgs{Addr: to.String(), Send: true, Seed: seed, Bytes: n, Timeout: timeout})
}

// Download has the guest ask the transfer server at from for n bytes of the stream of seed.
func (vm *VM) Download(ctx context.Context, from netip.Addr, seed uint64, n int64, timeout time.Duration) (agentapi.Transfer, error) {
	return vm.transfer(ctx, agentapi.TransferArgs{Addr: from.String(), Seed: seed, Bytes: n, Timeout: timeout})
}

func (vm *VM) transfer(ctx context.Context, args agentapi.TransferArgs) (agentapi.Transfer, error) {
	var r agentapi.Transfer
	return r, vm.call(ctx, args.Timeout, agentapi.OpTransfer, args, &r)
}

// Offloads sets features of the guest's card by ethtool's names, none to only read, and gives those that are on. A card
// that does not follow is an error.
func (vm *VM) Offloads(ctx context.Context, set map[string]bool) (map[string]bool, error) {
	var o agentapi.Offloads
	err := vm.call(ctx, 0, agentapi.OpOffloads, agentapi.OffloadArgs{Set: set}, &o)
	return o.Active, err
}

// Counters gives the guest's own counters.
func (vm *VM) Counters(ctx context.Context) (agentapi.Counters, error) {
	var c agentapi.Counters
	return c, vm.call(ctx, 0, agentapi.OpCounters, nil, &c)
}

// Neighbors gives the neighbour table of the guest's card.
func (vm *VM) Neighbors(ctx context.Context) ([]agentapi.Neighbor, error) {
	var n []agentapi.Neighbor
	return n, vm.call(ctx, 0, agentapi.OpNeighbors, nil, &n)
}

// Send has the guest put raw frames, each from its Ethernet header on, on its card.
func (vm *VM) Send(ctx context.Context, gap time.Duration, frames ...[]byte) error {
	return vm.call(ctx, gap*time.Duration(len(frames)), agentapi.OpSend, agentapi.SendArgs{Frames: frames, Gap: gap}, nil)
}

// SniffStart has the guest look for frames with marker on its card, one sniffer at a time.
func (vm *VM) SniffStart(ctx context.Context, marker []byte) error {
	return vm.call(ctx, 0, agentapi.OpSniffStart, agentapi.SniffArgs{Marker: marker}, nil)
}

// SniffStop ends the sniffer and gives what it saw.
func (vm *VM) SniffStop(ctx context.Context) (agentapi.Seen, error) {
	var s agentapi.Seen
	return s, vm.call(ctx, 0, agentapi.OpSniffStop, nil, &s)
}

// PowerOff has the guest switch itself off. [VM.Wait] sees the end; [VM.Stop] is still to be called.
func (vm *VM) PowerOff(ctx context.Context) error {
	return vm.call(ctx, 0, agentapi.OpPowerOff, nil, nil)
}
