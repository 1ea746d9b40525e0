// Command kernels runs the repository's kernel tests on kernels that this machine does not run: it builds the test binaries here, boots
// Debian's stock kernels under QEMU, runs the binaries inside and says for each package and kernel what passed, failed and was skipped for
// which need. "make test-kernels" is how it is called; docs/kernel-support.md is written from what it prints.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, out, errOut io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	o := Options{Progress: func(s string) { fmt.Fprintln(errOut, s) }}
	flags := flag.NewFlagSet("kernels", flag.ContinueOnError)
	flags.SetOutput(errOut)
	kernels := flags.String("kernels", strings.Join(AllKernels, ","), "Debian's kernel series to boot")
	packages := flags.String("packages", "", "folders of packages to run, comma separated (default: all that need a kernel)")
	flags.StringVar(&o.Bin, "bin", "bin", "folder of the built commands")
	flags.StringVar(&o.RefPlugins, "refplugins", "bin/refplugins", "folder of the reference plugins")
	flags.StringVar(&o.Run, "run", "", "only tests that match, as go test's -run")
	flags.BoolVar(&o.Short, "short", false, "go test's -short")
	flags.BoolVar(&o.Verbose, "v", false, "print what the tests print")
	flags.DurationVar(&o.Timeout, "timeout", 60*time.Minute, "of one kernel")
	asJSON := flags.Bool("json", false, "print the results as JSON")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(errOut, "kernels: want no arguments, got %q\n", flags.Args())
		return 2
	}
	if *packages != "" {
		o.Packages = strings.Split(*packages, ",")
	}
	if o.Verbose {
		o.Output = errOut
	}
	var all []Result
	for k := range strings.SplitSeq(*kernels, ",") {
		r, err := o.On(ctx, k)
		if err != nil {
			fmt.Fprintln(errOut, "kernels:", err)
			return 1
		}
		all = append(all, r)
	}
	if *asJSON {
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		if err := enc.Encode(all); err != nil {
			fmt.Fprintln(errOut, "kernels:", err)
			return 1
		}
	} else {
		for _, r := range all {
			r.print(out)
		}
	}
	for _, r := range all {
		if r.Failed() {
			return 1
		}
	}
	return 0
}
