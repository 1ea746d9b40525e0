package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/xdp"
	"golang.org/x/sys/unix"
)

// traceOptions are the flags of trace.
type traceOptions struct {
	attachment string
	to         string
	proto      string
	port       uint16
	count      int
	timeout    time.Duration
}

func newTrace(o *options) *cobra.Command {
	var t traceOptions
	cmd := &cobra.Command{
		Use:   "trace --attachment CONTAINER-ID[/IFNAME]",
		Short: "Follow one flow of an attachment: which path each frame takes, and why",
		Long: `Print a line for each frame of the flow, in either direction, at each place where the shortcut's programs see it: the sender's TAP, and the
host end where the TAP's program passed it on. The line says which path the frame takes from there, and why (docs/xdp.md).

Without --to it is all that the attachment sends and gets by its first address. One trace runs at a time. It ends by itself after
--timeout or --count lines, and a few seconds after it was killed.`,
		Example: "  tapirctl trace --attachment 7f3a/eth0 --to 10.9.0.7 --proto tcp --port 443",
		Args:    usageArgs(cobra.NoArgs),
		RunE:    func(cmd *cobra.Command, _ []string) error { return runTrace(cmd, o, t) },
	}
	f := cmd.Flags()
	f.StringVar(&t.attachment, "attachment", "", "the attachment, as CONTAINER-ID[/IFNAME]; the id may be cut")
	f.StringVar(&t.to, "to", "", "address of the other end")
	f.StringVar(&t.proto, "proto", "", "tcp, udp, icmp, icmp6 or a number")
	f.Uint16Var(&t.port, "port", 0, "port of the other end")
	f.IntVar(&t.count, "count", 0, "end after that many lines; 0: no limit")
	f.DurationVar(&t.timeout, "timeout", 10*time.Second, "end after that time; 0: when interrupted")
	return cmd
}

var protocols = map[string]uint8{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "icmp": unix.IPPROTO_ICMP, "icmp6": unix.IPPROTO_ICMPV6}

// filter is what is followed; the attachment's address is of the other end's family.
func (t traceOptions) filter(a state.Attachment) (xdp.Filter, error) {
	f := xdp.Filter{DestPort: t.port}
	if t.proto != "" {
		var ok bool
		if f.Proto, ok = protocols[t.proto]; !ok {
			n, err := strconv.ParseUint(t.proto, 10, 8)
			if err != nil || n == 0 {
				return f, usageError{fmt.Errorf("--proto: want tcp, udp, icmp, icmp6 or 1 to 255, got %q", t.proto)}
			}
			f.Proto = uint8(n)
		}
	}
	if t.to != "" {
		addr, err := netip.ParseAddr(t.to)
		if err != nil {
			return f, usageError{fmt.Errorf("--to: want an address, got %q", t.to)}
		}
		f.Dest = addr.Unmap()
	}
	for _, own := range a.Addresses {
		if addr := own.Prefix.Addr(); !f.Source.IsValid() && (!f.Dest.IsValid() || f.Dest.Is4() == addr.Is4()) {
			f.Source = addr
		}
	}
	if !f.Source.IsValid() {
		return f, fmt.Errorf("%s has no address of the family of %s", a.Key, f.Dest)
	}
	return f, nil
}

func runTrace(cmd *cobra.Command, o *options, t traceOptions) error {
	if t.attachment == "" {
		return usageError{errors.New("want --attachment")}
	}
	if t.count < 0 || t.timeout < 0 {
		return usageError{errors.New("--count and --timeout: want 0 or more")}
	}
	a, err := find(cmd.Context(), o, t.attachment)
	if err != nil {
		return err
	}
	filter, err := t.filter(a.Attachment)
	if err != nil {
		return err
	}
	if a.XDP.Mode == "" {
		return fmt.Errorf("%s has no part in the shortcut, so that all its frames take the default path: %s", a.Key, xdpRowOf(nil, a).Why)
	}
	s, err := xdp.OpenShortcut(o.bpffs)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("this version's programs are not pinned in %q; \"tapirctl xdp upgrade\" puts them onto the devices", o.bpffs)
	}
	if err != nil {
		return err
	}
	defer s.Close()
	names, err := deviceNames(cmd.Context(), o)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(cmd.Context())
	defer stop()
	if t.timeout > 0 {
		ctx, stop = context.WithTimeout(ctx, t.timeout)
		defer stop()
	}
	return follow(ctx, stop, cmd, o, s, filter, t.count, names)
}

// follow prints frames until ctx ends or stop was called.
func follow(ctx context.Context, stop func(), cmd *cobra.Command, o *options, s *xdp.Shortcut, f xdp.Filter, count int, names map[uint32]string) error {
	out, seen := cmd.OutOrStdout(), 0
	var printErr error
	lost, err := s.Trace(ctx, f, func(e xdp.Event) {
		if count > 0 && seen >= count || printErr != nil {
			return
		}
		seen++
		if printErr = printFrame(out, o, frameOf(e, names)); printErr != nil || count > 0 && seen >= count {
			stop()
		}
	})
	if errors.Is(err, xdp.ErrTracing) {
		return fmt.Errorf("%w", err)
	}
	if err = errors.Join(err, printErr); err != nil {
		return err
	}
	if lost > 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "tapirctl: %d frames came faster than they were read\n", lost)
	}
	if seen == 0 {
		fmt.Fprintln(cmd.ErrOrStderr(), "tapirctl: no frame of that flow was seen")
	}
	return nil
}

// deviceNames tell whose a device is, by ifindex.
func deviceNames(ctx context.Context, o *options) (map[uint32]string, error) {
	all, err := attachments(ctx, o)
	if err != nil {
		return nil, err
	}
	names := map[uint32]string{}
	for _, a := range all {
		names[uint32(a.TAP.Index)] = short(a.ContainerID) + "/" + a.TAP.Name
		names[uint32(a.Host.Index)] = short(a.ContainerID) + "/" + a.Host.Name
	}
	return names, nil
}

// frame is one line of a trace.
type frame struct {
	Time   time.Time      `json:"time"`
	At     string         `json:"at"` // tap-xdp, host-tc, uplink-xdp
	Device string         `json:"device"`
	Source netip.AddrPort `json:"source"`
	Dest   netip.AddrPort `json:"dest"`
	Proto  string         `json:"proto"`
	Bytes  int            `json:"bytes"`
	GSO    int            `json:"gso,omitempty"` // bytes of a segment
	Path   string         `json:"path"`          // shortcut by XDP, shortcut by tc, uplink by XDP, uplink by tc, host end, default, dropped
	Target string         `json:"target,omitempty"`
	Reason string         `json:"reason"`
	Why    string         `json:"why"`
	Flow   string         `json:"flow"` // the verdict on the flow: shortcut, default, unknown
}

func frameOf(e xdp.Event, names map[uint32]string) frame {
	name := func(index uint32) string {
		switch n, ok := names[index]; {
		case index == 0:
			return ""
		case ok:
			return n
		}
		return linkName(int(index))
	}
	f := frame{
		Time: e.Time, At: e.Hook.String(), Device: name(e.Ifindex), Source: e.Source, Dest: e.Dest, Proto: strconv.Itoa(int(e.Proto)), Bytes: e.Len, GSO: e.GSO,
		Path: pathOf(e), Target: name(e.Target), Reason: e.Reason.String(), Why: explain(e.Reason), Flow: e.Verdict.String(),
	}
	for n, number := range protocols {
		if number == e.Proto {
			f.Proto = n
		}
	}
	return f
}

// pathOf is where the frame goes from the hook that saw it.
func pathOf(e xdp.Event) string {
	by := "tc"
	if e.Hook != xdp.HookHostTC {
		by = "XDP"
	}
	switch {
	case e.Reason == xdp.ShortcutXDPToUplink, e.Reason == xdp.ShortcutTCToUplink:
		return "uplink by " + by
	case e.Reason.Taken():
		return "shortcut by " + by
	case e.Reason.Dropped():
		return "dropped"
	case e.Hook == xdp.HookTAPXDP:
		return "host end" // whose program asks the same again
	}
	return "default"
}

func printFrame(out io.Writer, o *options, f frame) error {
	if o.output == "json" {
		return json.NewEncoder(out).Encode(f)
	}
	to := f.Path
	if f.Target != "" && f.Path != "default" && f.Path != "host end" {
		to += " to " + f.Target
	}
	size := fmt.Sprintf("%d B", f.Bytes)
	if f.GSO > 0 {
		size += fmt.Sprintf(" in segments of %d", f.GSO)
	}
	_, err := fmt.Fprintf(out, "%s  %-10s %-22s %s > %s %s %s: %s; %s: %s\n", f.Time.Format("15:04:05.000000"), f.At, f.Device, endOf(f.Source), endOf(f.Dest),
		f.Proto, size, to, f.Reason, f.Why)
	return err
}

func endOf(a netip.AddrPort) string {
	if a.Port() == 0 {
		return a.Addr().String()
	}
	return a.String()
}

// explain is what a reason means, as docs/xdp.md has it.
func explain(r xdp.ShortcutReason) string {
	name := strings.TrimPrefix(strings.TrimPrefix(r.String(), "xdp_"), "tc_")
	if text, ok := meanings[name]; ok {
		return text
	}
	return "another version's reason"
}
