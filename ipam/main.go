package ipam

import (
	"fmt"
	"os"
	"runtime/debug"
	"slices"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	cniversion "github.com/containernetworking/cni/pkg/version"

	"github.com/tapir-cni/tapir/internal/version"
)

// versions are those of the CNI specification that tapir-ipam speaks.
var versions = cniversion.PluginSupports("0.3.1", "0.4.0", "1.0.0", "1.1.0")

// Main is the IPAM plugin tapir-ipam: it serves one CNI command, with its parameters in the environment and the
// configuration on stdin, and ends the process.
func Main() {
	about := "tapir-ipam " + version.String() + ": a CNI IPAM plugin that gives each attachment an address of each of its ranges"
	if slices.Contains(os.Args[1:], "--help") || slices.Contains(os.Args[1:], "-h") {
		fmt.Printf("%s\nIt is run by CNI plugins that have \"ipam\": {\"type\": \"tapir-ipam\"}; see https://www.cni.dev/docs/spec.\n", about)
		return
	}
	skel.PluginMainFuncs(skel.CNIFuncs{
		Add:    verb(cmdAdd),
		Del:    verb(cmdDel),
		Check:  verb(cmdCheck),
		GC:     verb(cmdGC),
		Status: verb(cmdStatus),
	}, versions, about)
}

// verb gives errors their CNI code, a panic included, so that stdout always carries a result or an error.
func verb(do func(*skel.CmdArgs) error) func(*skel.CmdArgs) error {
	return func(args *skel.CmdArgs) (err error) {
		defer func() {
			if p := recover(); p != nil {
				fmt.Fprintf(os.Stderr, "tapir-ipam: panic: %v\n%s", p, debug.Stack())
				err = types.NewError(types.ErrInternal, fmt.Sprintf("panic: %v", p), "this is a bug of tapir-ipam")
			}
		}()
		return cniError(do(args))
	}
}

// cniError is an error as CNI has it.
func cniError(err error) error {
	if err == nil {
		return nil
	}
	code, ok := ErrorCode(err)
	if !ok {
		code = types.ErrIOFailure
	}
	if e, isCNI := err.(*types.Error); isCNI { //nolint:errorlint // a wrapped one would lose what wraps it
		return e
	}
	return types.NewError(code, err.Error(), "")
}
