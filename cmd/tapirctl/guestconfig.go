package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/tapir-cni/tapir/internal/guestconfig"
)

// forms are what guest-config can print, in the order of the whole.
var forms = []string{"all", "qemu", "qemu-microvm", "firecracker", "cloud-hypervisor", "fds", "kata", "ip", "network-config"}

func newGuestConfig(o *options) *cobra.Command {
	var form string
	var opts guestconfig.AllOptions
	var restore restoreOptions
	cmd := &cobra.Command{
		Use:   "guest-config CONTAINER-ID[/IFNAME]",
		Short: "Print what a VMM and its guest must be told to use an attachment",
		Long: `Print, for one attachment, QEMU arguments, Firecracker JSON and boot argument, Cloud Hypervisor arguments, a kernel
ip= line and a cloud-init network-config (version 2), the commands by which its queues get NAPI (tapirctl fds, or exec for a VMM that
takes no open queues), and for vmm kata the DAN file. What a VMM cannot do is said with the reason.

With --restore, what brings a snapshot up on the attachment: Firecracker's snapshot/load with network_overrides, Cloud Hypervisor's restore, by name or with
the queues from tapird, and QEMU's arguments with -incoming.`,
		Example: "  tapirctl guest-config 7f3a --format qemu-microvm\n  tapirctl guest-config 7f3a --restore --snapshot /srv/snapshot --format firecracker",
		Args:    usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := restore.check(form); err != nil {
				return usageError{err}
			}
			if !restore.on && !slices.Contains(forms, form) {
				return usageError{fmt.Errorf("--format: want one of %s, got %q", strings.Join(forms, ", "), form)}
			}
			a, err := find(cmd.Context(), o, args[0])
			if err != nil {
				return err
			}
			guest, err := guestconfig.FromAttachment(a.Attachment)
			if err != nil {
				return err
			}
			if restore.on {
				return restore.print(cmd, o, guest, opts.QEMU, form)
			}
			all, err := guest.All(opts)
			if err != nil {
				return err
			}
			if o.output == "json" {
				return printJSON(cmd.OutOrStdout(), all)
			}
			return printForms(cmd.OutOrStdout(), all, form)
		},
	}
	f := cmd.Flags()
	f.StringVar(&form, "format", "all", "one of "+strings.Join(forms, ", ")+"; with --restore of "+strings.Join(restoreForms, ", "))
	f.BoolVar(&restore.on, "restore", false, "what a VMM is told to restore a snapshot here")
	f.StringVar(&restore.snapshot, "snapshot", "", "where it is: Firecracker's folder (with vmstate and memory), Cloud Hypervisor's folder, QEMU's file (default /srv/snapshot)")
	f.BoolVar(&opts.QEMU.VHost, "vhost", false, "QEMU: use vhost-net")
	f.BoolVar(&opts.Firecracker.MTU, "firecracker-mtu", false, "Firecracker: set \"mtu\", which only recent releases know")
	f.StringVar(&opts.IPLine.Hostname, "hostname", "", "hostname in the ip= line")
	f.StringVar(&opts.IPLine.Device, "device", "", "the kernel's own name of the card in the ip= line (default: that of the pod's interface where it has the form ethN)")
	return cmd
}

// section is one form of what guest-config prints.
type section struct{ form, title, text, refused string }

// printSections prints one form bare, or all with headings.
func printSections(w io.Writer, form string, sections []section) error {
	for _, s := range sections {
		switch {
		case form == s.form && s.refused != "":
			return fmt.Errorf("%s: %s", s.form, s.refused)
		case form == s.form:
			_, err := fmt.Fprintln(w, strings.TrimRight(s.text, "\n"))
			return err
		case form == "all" && s.refused != "":
			fmt.Fprintf(w, "# %s\n# cannot: %s\n\n", s.title, s.refused)
		case form == "all":
			fmt.Fprintf(w, "# %s\n%s\n\n", s.title, strings.TrimRight(s.text, "\n"))
		}
	}
	return nil
}

func printForms(w io.Writer, all guestconfig.All, form string) error {
	firecracker := ""
	if all.Firecracker != nil {
		firecracker = all.Firecracker.JSON()
	}
	sections := []section{
		{"qemu", "QEMU, machine with PCI", guestconfig.ShellJoin(all.QEMU), all.Refused["qemu"]},
		{"qemu-microvm", "QEMU, -M microvm", guestconfig.ShellJoin(all.QEMUMicroVM), all.Refused["qemuMicroVM"]},
		{"firecracker", "Firecracker", firecracker, all.Refused["firecracker"]},
		{"cloud-hypervisor", "Cloud Hypervisor", guestconfig.ShellJoin(all.CloudHypervisor), all.Refused["cloudHypervisor"]},
		{"fds", "with NAPI on each queue", commands(all), all.Refused["fds"]},
		{"kata", "Kata Containers, DAN file", all.DAN, noDAN(all)},
		{"ip", "kernel boot argument", all.IPLine, all.Refused["ipLine"]},
		{"network-config", "cloud-init network-config, version 2", all.NetworkConfig, all.Refused["networkConfig"]},
	}
	if err := printSections(w, form, sections); err != nil {
		return err
	}
	if form == "all" {
		where := all.Guest.Netns
		if all.Guest.OnHost {
			where = "the host's network namespace"
		}
		fmt.Fprintf(w, "# The VMM opens %q in %s. The guest wants at least %d vCPU.\n", all.Guest.TAP, where, all.MinVCPUs)
	}
	return nil
}

// commands are the lines that start the VMMs, those by fds first.
func commands(all guestconfig.All) string {
	var lines []string
	for _, byVMM := range []map[string][]string{all.FDs, all.Exec} {
		for _, vmm := range slices.Sorted(maps.Keys(byVMM)) {
			lines = append(lines, guestconfig.ShellJoin(byVMM[vmm])+" …")
		}
	}
	return strings.Join(lines, "\n")
}

func noDAN(all guestconfig.All) string {
	if all.DAN == "" {
		return `a file is written with "vmm": "kata" and "placement": "host"`
	}
	return ""
}
