package quickstart

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/tapir-cni/tapir/internal/guestconfig"
)

// Report is what the quick start made and measured.
type Report struct {
	Kernel      string        `json:"kernel"` // of the guests
	Accel       string        `json:"accel"`
	Sandboxes   []Sandbox     `json:"sandboxes"`
	Pings       []Ping        `json:"pings"`
	Transfers   []Transfer    `json:"transfers"`
	LeftInside  []string      `json:"leftInside"` // on the quick start's own node, after DEL and cleanup
	LeftOutside []string      `json:"leftOutside"`
	Error       string        `json:"error,omitempty"`
	Interrupted bool          `json:"interrupted,omitempty"`
	Elapsed     time.Duration `json:"elapsed"` // nanoseconds, as all times here
}

// Sandbox is one pod with its microVM.
type Sandbox struct {
	Name     string            `json:"name"`
	Guest    guestconfig.Guest `json:"guest"`
	TAPFlags string            `json:"tapFlags"` // the kernel's
	PodEnd   string            `json:"podEnd"`
	HostEnd  string            `json:"hostEnd"`
	Add      time.Duration     `json:"add"`
	Boot     time.Duration     `json:"boot"` // until the guest is configured and answers
	Del      time.Duration     `json:"del"`
	QEMU     []string          `json:"qemu"`
}

// Ping is the outcome of some echo requests.
type Ping struct {
	From     string        `json:"from"`
	To       string        `json:"to"`
	Addr     string        `json:"addr"`
	Size     int           `json:"size"` // payload bytes
	Sent     int           `json:"sent"`
	Received int           `json:"received"`
	Avg      time.Duration `json:"avg"`
}

// Transfer is one stream over TCP.
type Transfer struct {
	From     string  `json:"from"` // the sender
	To       string  `json:"to"`
	Family   string  `json:"family"`
	Bytes    int64   `json:"bytes"`
	Mbps     float64 `json:"mbps"`
	Sent     string  `json:"sent"` // XXH64
	Received string  `json:"received"`
	Peer     string  `json:"peer"` // whom the server saw
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

func printSandboxes(w io.Writer, sandboxes []Sandbox) {
	fmt.Fprintln(w, "\nWhat one ADD each has made")
	t := tabwriter.NewWriter(w, 2, 0, 2, ' ', 0)
	row := func(name string, value func(Sandbox) string) {
		fmt.Fprintf(t, "  %s", name)
		for _, s := range sandboxes {
			fmt.Fprintf(t, "\t%s", value(s))
		}
		fmt.Fprintln(t)
	}
	row("sandbox", func(s Sandbox) string { return s.Name })
	row("netns", func(s Sandbox) string { return s.Guest.Netns })
	row("TAP", func(s Sandbox) string { return fmt.Sprintf("%s, %d queues", s.Guest.TAP, s.Guest.Queues) })
	row("TAP flags", func(s Sandbox) string { return s.TAPFlags })
	row("pod end, host end", func(s Sandbox) string { return s.PodEnd + ", " + s.HostEnd })
	row("guest MAC, MTU", func(s Sandbox) string { return fmt.Sprintf("%s, %d", s.Guest.MAC, s.Guest.MTU) })
	for i := range 2 {
		row([]string{"guest addresses", ""}[i], func(s Sandbox) string {
			if i < len(s.Guest.Addresses) {
				return fmt.Sprintf("%s via %s", s.Guest.Addresses[i].Prefix, s.Guest.Addresses[i].Gateway)
			}
			return ""
		})
	}
	row("ADD", func(s Sandbox) string { return milliseconds(s.Add) })
	row("guest ready", func(s Sandbox) string { return fmt.Sprintf("%.1f s after QEMU's start", s.Boot.Seconds()) })
	_ = t.Flush() // w is a terminal or a buffer
}

func printMeasured(w io.Writer, r *Report) {
	fmt.Fprintln(w, "\nWhat was measured")
	t := tabwriter.NewWriter(w, 2, 0, 2, ' ', 0)
	fmt.Fprintln(t, "  ping\taddress\t56 bytes\t8000 bytes")
	for i := 0; i+1 < len(r.Pings); i += 2 {
		small, large := r.Pings[i], r.Pings[i+1]
		fmt.Fprintf(t, "  %s to %s\t%s\t%s\t%s\n", small.From, small.To, small.Addr, small.text(), large.text())
	}
	_ = t.Flush()
	fmt.Fprintln(w)
	fmt.Fprintln(t, "  TCP\tfamily\trate\tbytes compared, hash")
	for _, x := range r.Transfers {
		fmt.Fprintf(t, "  %s to %s\t%s\t%.0f Mbit/s\t%d MB equal, %s\n", x.From, x.To, x.Family, x.Mbps, x.Bytes>>20, x.Received)
	}
	_ = t.Flush()
	fmt.Fprintf(w, "\n  The world saw the node's addresses (ipMasq), everybody else the guests' own.\n\n")
}

func (p Ping) text() string {
	return fmt.Sprintf("%d/%d, %s", p.Received, p.Sent, milliseconds(p.Avg))
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}
