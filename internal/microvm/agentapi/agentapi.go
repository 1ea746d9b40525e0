// Package agentapi is what the node and the agent inside a test guest say to each other over the serial console.
//
// Each message is one line: a record separator (0x1e, as RFC 7464 uses it), a JSON object and a newline. The node sends
// [Request] and the guest answers each with one [Response] of the same id, in any order; a Response with id 0 is an
// [Event]. Everything else on the console is the kernel's.
package agentapi

import (
	"encoding/json"
	"time"

	"github.com/tapir-cni/tapir/internal/microvm/stream"
	"github.com/tapir-cni/tapir/internal/microvm/wire"
)

// Separator starts each message.
const Separator = '\x1e'

// Request asks the agent for one thing.
type Request struct {
	ID   int             `json:"id"` // above 0
	Op   string          `json:"op"` // one of the Op constants
	Args json.RawMessage `json:"args,omitempty"`
}

// Response answers a request, or tells of an event.
type Response struct {
	ID     int             `json:"id"`
	Error  string          `json:"error,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
}

// The operations, each with its arguments and result.
const (
	OpInfo       = "info"        // none -> Info
	OpPing       = "ping"        // PingArgs -> PingResult
	OpTransfer   = "transfer"    // TransferArgs -> stream.Result
	OpOffloads   = "offloads"    // OffloadArgs -> Offloads
	OpCounters   = "counters"    // none -> Counters
	OpSend       = "send"        // SendArgs -> none
	OpSniffStart = "sniff-start" // SniffArgs -> none
	OpSniffStop  = "sniff-stop"  // none -> wire.Seen
	OpNeighbors  = "neighbors"   // none -> []Neighbor
	OpPowerOff   = "poweroff"    // none -> none
)

// Event is the guest's first message: it is configured, or it says why not.
type Event struct {
	Ready  bool   `json:"ready"`
	Source string `json:"source"` // what configured it: network-config or ip=
	Info   Info   `json:"info"`
}

// Info is how the guest sees itself.
type Info struct {
	Kernel    string        `json:"kernel"`
	CPUs      int           `json:"cpus"`
	Uptime    time.Duration `json:"uptime"`
	IfName    string        `json:"ifName"`
	MAC       string        `json:"mac"`
	MTU       int           `json:"mtu"`
	RxQueues  int           `json:"rxQueues"`  // that the device has
	Pairs     int           `json:"pairs"`     // that the driver uses, ethtool's combined channels
	Addresses []string      `json:"addresses"` // with prefix length; those of link scope too
	Tentative []string      `json:"tentative"` // of these, those that DAD has not cleared
	Routes    []string      `json:"routes"`
	Resolv    string        `json:"resolv"` // /etc/resolv.conf
}

// PingArgs ask for echo requests by busybox's ping.
type PingArgs struct {
	Addr    string        `json:"addr"`
	Size    int           `json:"size"`    // payload bytes
	Count   int           `json:"count"`   // 1 or more
	Timeout time.Duration `json:"timeout"` // for the whole
}

// PingResult is what ping printed.
type PingResult struct {
	Sent     int           `json:"sent"`
	Received int           `json:"received"`
	Min      time.Duration `json:"min"`
	Avg      time.Duration `json:"avg"`
	Max      time.Duration `json:"max"`
	Output   string        `json:"output"`
}

// TransferArgs ask the guest to be the client of a transfer.
type TransferArgs struct {
	Addr    string        `json:"addr"` // of the server, without port
	Send    bool          `json:"send"` // from this guest to Addr
	Seed    uint64        `json:"seed"`
	Bytes   int64         `json:"bytes"`
	Timeout time.Duration `json:"timeout"`
}

// OffloadArgs set features of the guest's card by ethtool's names; none only reads.
type OffloadArgs struct {
	Set map[string]bool `json:"set,omitempty"`
}

// Offloads are all features of the card that are on, by name.
type Offloads struct {
	Active map[string]bool `json:"active"`
}

// Counters are the guest's own.
type Counters struct {
	Link map[string]uint64 `json:"link"` // /sys/class/net/<card>/statistics
	SNMP map[string]uint64 `json:"snmp"` // "Ip.FragCreates" and so on, of /proc/net/snmp and snmp6
	Card map[string]uint64 `json:"card"` // the driver's own, "rx_queue_0_packets" and so on, as "ethtool -S" has them
}

// SendArgs are raw frames to send on the guest's card.
type SendArgs struct {
	Frames [][]byte      `json:"frames"`
	Gap    time.Duration `json:"gap"`
}

// SniffArgs start the guest's one sniffer.
type SniffArgs struct {
	Marker []byte `json:"marker"`
}

// Seen is a sniffer's result.
type Seen = wire.Seen

// Transfer is a transfer's result.
type Transfer = stream.Result

// Neighbor is an entry of the guest's neighbour table.
type Neighbor struct {
	Addr  string `json:"addr"`
	MAC   string `json:"mac"`
	State string `json:"state"`
}
