// Package plugin is the CNI plugin tapir: a configuration and the CNI arguments become a plan ([Plan]), the plan is
// carried out in the kernel step by step, and each step knows how to take itself back.
package plugin

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/tapir-cni/tapir/internal/trace"
	tapirversion "github.com/tapir-cni/tapir/internal/version"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/xdp"
)

// specVersions are the versions of the CNI specification that tapir speaks.
var specVersions = version.PluginSupports("0.3.1", "0.4.0", "1.0.0", "1.1.0")

// plugin is one call of the binary.
type plugin struct {
	bpffs  string    // the folder of the pinned programs
	danDir string    // where the DAN file of an attachment is that has no whole record
	pod    state.Pod // of the DEL, where addresses are sticky: a rebuilt lease does not know
	trace  *trace.Trace
	conf   []byte // of this call
}

const about = `tapir is a CNI plugin for microVM sandboxes. A container runtime calls it with CNI_COMMAND set and the
network configuration on standard input; it is not run by hand. for people there is "tapirctl --help".
TAPIR_TRACE=1 prints to standard error where the time of a call goes.`

// Main runs the plugin and ends the process.
func Main() {
	if len(os.Args) > 1 {
		info(os.Args[1])
		return
	}
	began := time.Now()
	p := &plugin{bpffs: xdp.DefaultDir, danDir: DefaultDANDir, trace: trace.Start()}
	err := skel.PluginMainFuncsWithError(skel.CNIFuncs{
		Add: p.wrap(p.add), Del: p.wrap(p.del), Check: p.wrap(p.check), GC: p.wrap(p.gc), Status: p.wrap(p.status),
	}, specVersions, "tapir "+tapirversion.String()+"\n"+about)
	p.count(err, time.Since(began))
	p.trace.Print()
	if err != nil {
		if printErr := err.Print(); printErr != nil {
			fmt.Fprintln(os.Stderr, "tapir: write the error to stdout:", printErr)
		}
		os.Exit(1)
	}
}

// info answers the flags that people try on any binary.
func info(arg string) {
	if arg == "--version" || arg == "-version" {
		fmt.Println("tapir", tapirversion.String())
		return
	}
	fmt.Printf("tapir %s\n%s\nCNI protocol versions supported: %s\n", tapirversion.String(), about, strings.Join(specVersions.SupportedVersions(), ", "))
	if arg != "--help" && arg != "-h" && arg != "help" {
		fmt.Fprintf(os.Stderr, "tapir: unknown argument %q\n", arg)
		os.Exit(2)
	}
}

// wrap turns an error of ours into one with a CNI code.
func (p *plugin) wrap(verb func(*skel.CmdArgs) error) func(*skel.CmdArgs) error {
	return func(args *skel.CmdArgs) error {
		p.conf = args.StdinData
		return cniError(verb(args))
	}
}

// oneLine puts a joined error into one line.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
