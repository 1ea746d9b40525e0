package main

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/tapir-cni/tapir/internal/guestconfig"
)

// restoreForms are what guest-config --restore can print, in the order of the whole.
var restoreForms = []string{"all", "firecracker", "cloud-hypervisor", "qemu", "qemu-microvm", "fds"}

// restoreOptions are the flags of guest-config that speak of a snapshot.
type restoreOptions struct {
	on       bool
	snapshot string
}

func (r *restoreOptions) check(form string) error {
	switch {
	case !r.on && r.snapshot != "":
		return errors.New("--snapshot: want it with --restore")
	case r.on && !slices.Contains(restoreForms, form):
		return fmt.Errorf("--format: want one of %s with --restore, got %q", strings.Join(restoreForms, ", "), form)
	case r.snapshot != "" && (!filepath.IsAbs(r.snapshot) || strings.ContainsAny(r.snapshot, ",[]\"\n")):
		return fmt.Errorf(`--snapshot: want an absolute path without ',', '[', ']' and '"', got %q`, r.snapshot)
	}
	return nil
}

func (r *restoreOptions) print(cmd *cobra.Command, o *options, g guestconfig.Guest, q guestconfig.QEMUOptions, form string) error {
	restore, err := g.Restore(guestconfig.RestoreOptions{Snapshot: r.snapshot, QEMU: q})
	if err != nil {
		return err
	}
	if o.output == "json" {
		return printJSON(cmd.OutOrStdout(), restore)
	}
	for _, warning := range restore.Warnings {
		fmt.Fprintf(cmd.ErrOrStderr(), "tapirctl: %s\n", warning)
	}
	return printRestore(cmd.OutOrStdout(), restore, form)
}

func printRestore(w io.Writer, r guestconfig.Restore, form string) error {
	firecracker := ""
	if r.Firecracker != nil {
		firecracker = r.Firecracker.JSON()
	}
	var fds []string
	for _, argv := range [][]string{r.CloudHypervisorFDs, r.QEMUFDs, r.QEMUMicroVMFDs} {
		if len(argv) > 0 {
			fds = append(fds, guestconfig.ShellJoin(argv))
		}
	}
	return printSections(w, form, []section{
		{"firecracker", "Firecracker, body of PUT /snapshot/load", firecracker, r.Refused["firecracker"]},
		{"cloud-hypervisor", "Cloud Hypervisor, which was started by name", guestconfig.ShellJoin(r.CloudHypervisor), r.Refused["cloudHypervisor"]},
		{"qemu", "QEMU, machine with PCI: beside what else the saved one had", guestconfig.ShellJoin(r.QEMU), r.Refused["qemu"]},
		{"qemu-microvm", "QEMU, -M microvm: beside what else the saved one had", guestconfig.ShellJoin(r.QEMUMicroVM), r.Refused["qemuMicroVM"]},
		{"fds", "with NAPI on each queue, for what was started so", strings.Join(fds, "\n"), r.Refused["qemuFDs"]},
	})
}
