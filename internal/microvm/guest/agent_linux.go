package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/tapir-cni/tapir/internal/microvm/agentapi"
	"github.com/tapir-cni/tapir/internal/microvm/ping"
	"github.com/tapir-cni/tapir/internal/microvm/stream"
	"github.com/tapir-cni/tapir/internal/microvm/wire"
)

// agent answers requests, each on a goroutine of its own.
type agent struct {
	console *console
	card    string
	ops     map[string]func(args json.RawMessage) (any, error)

	mu      sync.Mutex
	sniffer *wire.Sniffer
}

func newAgent(c *console, card string) *agent {
	a := &agent{console: c, card: card}
	a.ops = map[string]func(json.RawMessage) (any, error){
		agentapi.OpInfo:       func(json.RawMessage) (any, error) { return readInfo(card) },
		agentapi.OpPing:       op(func(p agentapi.PingArgs) (any, error) { return ping.Run(context.Background(), p) }),
		agentapi.OpTransfer:   op(transfer),
		agentapi.OpOffloads:   op(func(o agentapi.OffloadArgs) (any, error) { return offloads(card, o.Set) }),
		agentapi.OpCounters:   func(json.RawMessage) (any, error) { return readCounters(card) },
		agentapi.OpNeighbors:  func(json.RawMessage) (any, error) { return readNeighbors(card) },
		agentapi.OpSend:       op(func(s agentapi.SendArgs) (any, error) { return nil, wire.Send(card, s.Gap, s.Frames...) }),
		agentapi.OpSniffStart: op(a.sniffStart),
		agentapi.OpSniffStop:  func(json.RawMessage) (any, error) { return a.sniffStop() },
		agentapi.OpPowerOff: func(json.RawMessage) (any, error) {
			time.AfterFunc(100*time.Millisecond, powerOff) // let the answer out first
			return nil, nil
		},
	}
	return a
}

// op makes an operation of a function with typed arguments.
func op[T any](f func(T) (any, error)) func(json.RawMessage) (any, error) {
	return func(raw json.RawMessage) (any, error) {
		var args T
		if err := json.Unmarshal(raw, &args); err != nil {
			return nil, fmt.Errorf("arguments: %w", err)
		}
		return f(args)
	}
}

// serve answers until the console fails.
func (a *agent) serve() error {
	for {
		req, err := a.console.read()
		if err != nil {
			return err
		}
		go func() {
			if err := a.console.write(a.answer(req)); err != nil {
				fmt.Println("tapir-guest: answer:", err)
			}
		}()
	}
}

func (a *agent) answer(req agentapi.Request) agentapi.Response {
	resp := agentapi.Response{ID: req.ID}
	f, ok := a.ops[req.Op]
	if !ok {
		resp.Error = fmt.Sprintf("unknown operation %q", req.Op)
		return resp
	}
	result, err := f(req.Args)
	if err == nil && result != nil {
		resp.Result, err = json.Marshal(result)
	}
	if err != nil {
		resp.Error = err.Error()
	}
	return resp
}

// transfer is the client of a transfer with the server at args.Addr.
func transfer(args agentapi.TransferArgs) (any, error) {
	addr := net.JoinHostPort(args.Addr, strconv.Itoa(stream.Port))
	c, err := net.DialTimeout("tcp", addr, args.Timeout)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(args.Timeout)); err != nil {
		return nil, err
	}
	if args.Send {
		return stream.Upload(c, args.Seed, args.Bytes)
	}
	return stream.Download(c, args.Seed, args.Bytes)
}

func (a *agent) sniffStart(args agentapi.SniffArgs) (any, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.sniffer != nil {
		return nil, errors.New("a sniffer runs already")
	}
	s, err := wire.Sniff(a.card, args.Marker)
	a.sniffer = s
	return nil, err
}

func (a *agent) sniffStop() (any, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.sniffer == nil {
		return nil, errors.New("no sniffer runs")
	}
	s := a.sniffer
	a.sniffer = nil
	return s.Close()
}
