// Package client asks tapird for the open queues of an attachment. The protocol, version 1, is described in docs/tapird.md
// for launchers in other languages; this package is its one definition in Go, and the daemon uses it too.
//
// It links the standard library and x/sys alone.
package client

import "fmt"

// Version is the protocol's.
const Version = 1

// DefaultSocket is where tapird listens if nothing else is said.
const DefaultSocket = "/run/tapir/tapird.sock"

// MaxRequest bounds a request and MaxAnswer an answer, in bytes with the newline that ends each.
const (
	MaxRequest = 4096
	MaxAnswer  = 16384
)

// MaxFDs is how many descriptors the kernel takes in one message (SCM_MAX_FD, include/net/scm.h).
const MaxFDs = 253

// Request is the one line that a peer sends.
type Request struct {
	Version     int    `json:"version"`
	Network     string `json:"network,omitempty"` // the "name" of the network configuration; needed where ContainerID and IfName are in two
	ContainerID string `json:"containerID"`       // whole
	IfName      string `json:"ifName"`
	Queues      int    `json:"queues,omitempty"` // 0: as many as the TAP was made for
	Token       string `json:"token,omitempty"`  // what the token file holds; uid 0 needs none
}

// Description says what the descriptors are that come with it.
type Description struct {
	Version     int    `json:"version"`
	Network     string `json:"network"`
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifName"`
	Name        string `json:"name"`        // the TAP's, in its netns
	Netns       string `json:"netns"`       // path, empty where the TAP is in the host's; a queue works in every netns
	MTU         int    `json:"mtu"`         // bytes
	MAC         string `json:"mac"`         // the guest's, as the VMM must present it
	Queues      int    `json:"queues"`      // descriptors, each one queue pair of the guest
	Flags       int    `json:"flags"`       // IFF_* that each was opened with
	NAPI        bool   `json:"napi"`        // IFF_NAPI is one of them
	VnetHdrSize int    `json:"vnetHdrSize"` // bytes of the virtio-net header before each frame, 0 without IFF_VNET_HDR; a VMM may set another
}

// Code is the kind of a refusal, for programs.
type Code string

// The refusals. Those above the blank line are the request's or the peer's fault, those below are how things are.
const (
	Malformed     Code = "malformed"      // no JSON object of this form on one line
	TooLarge      Code = "too-large"      // above MaxRequest
	BadVersion    Code = "bad-version"    // not Version
	TimedOut      Code = "timed-out"      // the peer said nothing, or not enough, within the time
	BadQueues     Code = "bad-queues"     // below 0, above 256, or more than the TAP was made for
	WrongUser     Code = "wrong-user"     // neither uid 0 nor whom the TAP belongs to
	TokenRequired Code = "token-required" // no token; Error.TokenFile is where it is to be read
	WrongToken    Code = "wrong-token"

	Unknown   Code = "unknown-attachment"
	Ambiguous Code = "ambiguous" // in several networks; name one
	NoTAP     Code = "no-tap"    // a plain pod
	NotReady  Code = "not-ready" // its ADD has not ended
	NetnsGone Code = "netns-gone"
	TAPGone   Code = "tap-gone"
	QueueBusy Code = "queue-busy" // open already, as many as there can be
	Overload  Code = "overload"   // too many peers at once
	Internal  Code = "internal"
)

// Error is a refusal by tapird.
type Error struct {
	Code      Code   `json:"code"`
	Message   string `json:"message"`
	TokenFile string `json:"tokenFile,omitempty"` // with TokenRequired and WrongToken
}

func (e *Error) Error() string { return fmt.Sprintf("tapird: %s (%s)", e.Message, e.Code) }

// Refusal is the answer's line where there are no descriptors.
type Refusal struct {
	Version int    `json:"version"`
	Error   *Error `json:"error"`
}
