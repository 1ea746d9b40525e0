package ipam

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/tapir-cni/tapir/internal/jsonkeys"
	"github.com/tapir-cni/tapir/state"
)

// ErrExists is returned by [Acquire] where the attachment has addresses already; those stay as they are.
var ErrExists = state.ErrExists

// ExhaustedError says that a range set has no free address (CNI code 100).
type ExhaustedError struct {
	Ranges    string // as people write them
	Leased    int
	Resting   int
	Reserved  uint64        // network, broadcast, gateways and excluded ones
	FirstFree time.Duration // when the first resting one is free again; 0 where none rests
}

func (e *ExhaustedError) Error() string {
	resting := ""
	if e.Resting > 0 {
		resting = fmt.Sprintf(", %d resting (the first is free in %v)", e.Resting, max(e.FirstFree.Round(time.Second), time.Second))
	}
	return fmt.Sprintf("no free address in %s: %d leased, %d reserved%s; \"tapirctl gc\" frees those of dead pods",
		e.Ranges, e.Leased, e.Reserved, resting)
}

// RequestError says that a requested address cannot be given to anybody (CNI code 7).
type RequestError struct {
	Address string // as it was requested
	Problem string
}

func (e *RequestError) Error() string {
	return fmt.Sprintf("requested address %q: %s", e.Address, e.Problem)
}

// The codes of tapir's own, besides those of the CNI specification.
const (
	codeExhausted uint = 100
	codeCorrupt   uint = 103
)

// ErrorCode is the CNI error code of an error of this package or of package state; ok is false for others.
func ErrorCode(err error) (code uint, ok bool) {
	var (
		exhausted *ExhaustedError
		request   *RequestError
		inUse     *state.AddressInUseError
		faults    jsonkeys.Faults
		cniErr    *types.Error
	)
	switch {
	case errors.As(err, &cniErr):
		return cniErr.Code, true
	case errors.As(err, &exhausted):
		return codeExhausted, true
	case errors.As(err, &request), errors.As(err, &faults):
		return types.ErrInvalidNetworkConfig, true
	case errors.As(err, &inUse), errors.Is(err, state.ErrLocked), errors.Is(err, state.ErrBusy),
		errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return types.ErrTryAgainLater, true
	case errors.Is(err, ErrExists):
		return types.ErrInvalidEnvironmentVariables, true
	case errors.Is(err, state.ErrCorrupt):
		return codeCorrupt, true
	case errors.Is(err, state.ErrSchema):
		return types.ErrIOFailure, true
	}
	return 0, false
}
