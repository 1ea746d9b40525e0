package plugin

import (
	"errors"
	"io/fs"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/tapir-cni/tapir/internal/jsonkeys"
	"github.com/tapir-cni/tapir/ipam"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/tap"
	"github.com/tapir-cni/tapir/xdp"
)

// CNI error codes beside those of the specification (github.com/containernetworking/cni/pkg/types has 1 to 11, 50, 51 and
// 999), and ipam has 100. docs/operations.md says of each what to do.
const (
	CodeUnsupported uint = 101 // the kernel lacks a feature
	CodeBusy        uint = 102 // the device is there already, or somebody has it open
	CodeCorrupt     uint = 103 // the state is damaged and cannot be rebuilt
	CodeDiffers     uint = 104 // CHECK: the kernel has not what ADD made
	codeUnavailable uint = 50  // STATUS: this node can serve no ADD
	codeConfig           = types.ErrInvalidNetworkConfig
)

// coded is an error that carries its CNI code; the outermost one in a chain decides.
type coded struct {
	code uint
	err  error
}

func (c *coded) Error() string { return c.err.Error() }
func (c *coded) Unwrap() error { return c.err }

// withCode gives err a CNI code; nil stays nil.
func withCode(code uint, err error) error {
	if err == nil {
		return nil
	}
	return &coded{code, err}
}

// cniError turns err into what the runtime reads on stdout.
func cniError(err error) error {
	if err == nil {
		return nil
	}
	var already *types.Error
	if errors.As(err, &already) {
		// The code is that of the plugin or check that said it; the text says what it was asked for.
		return types.NewError(already.Code, oneLine(err), "")
	}
	return types.NewError(codeOf(err), oneLine(err), "")
}

func codeOf(err error) uint {
	var c *coded
	var mac *state.MACInUseError
	var unsupported *xdp.UnsupportedError
	var path *fs.PathError
	var limit *xdp.LimitError
	if errors.As(err, &c) {
		return c.code
	}
	if code, ok := ipam.ErrorCode(err); ok {
		return code
	}
	switch {
	case errors.Is(err, xdp.ErrLocked):
		return types.ErrTryAgainLater
	case errors.As(err, &limit):
		return types.ErrInvalidNetworkConfig
	case errors.As(err, &mac), errors.Is(err, tap.ErrExists):
		return CodeBusy
	case errors.As(err, &unsupported), errors.Is(err, tap.ErrUnsupported):
		return CodeUnsupported
	case errors.As(err, &path), errors.Is(err, fs.ErrPermission), errors.Is(err, fs.ErrNotExist):
		return types.ErrIOFailure
	}
	return types.ErrInternal
}

// faults are everything that is wrong with a request, each with the place of its cause.
type faults = jsonkeys.Faults

// refuse is nil where there is no fault, else one error with the code that names all of them.
func refuse(code uint, fs faults) error {
	if len(fs) == 0 {
		return nil
	}
	lines := make([]string, len(fs))
	for i, f := range fs {
		lines[i] = f.String()
	}
	return types.NewError(code, strings.Join(lines, "; "), "")
}
