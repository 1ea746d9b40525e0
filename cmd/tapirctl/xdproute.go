package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/tapir-cni/tapir/agent/uplink"
	"github.com/tapir-cni/tapir/xdp"
	"github.com/vishvananda/netlink"
)

func newXDPRoute(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "route",
		Short: "Routes of the shortcut to pods of other nodes",
		Long: `A route says which next hop the pods of another node are behind. Frames take it while tapird finds that the node's own routes lead the
same way and that the next hop has answered; else they take the default path.`,
		Args: usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		&cobra.Command{
			Use: "add PREFIX via NEXTHOP [dev UPLINK]", Short: "Add a route, or give it another next hop",
			Args: usageArgs(cobra.RangeArgs(3, 5)), RunE: func(cmd *cobra.Command, args []string) error { return addXDPRoute(cmd, o, args) },
		},
		&cobra.Command{
			Use: "del PREFIX", Short: "Delete a route; one that is not there is no error",
			Args: usageArgs(cobra.RangeArgs(1, 5)), RunE: func(cmd *cobra.Command, args []string) error { return deleteXDPRoute(cmd, o, args) },
		},
		&cobra.Command{
			Use: "list", Short: "List the routes, and why one is not usable",
			Args: usageArgs(cobra.NoArgs), RunE: func(cmd *cobra.Command, _ []string) error { return listXDPRoutes(cmd, o) },
		},
	)
	return cmd
}

// parseRoute reads "PREFIX [via NEXTHOP] [dev UPLINK]".
func parseRoute(args []string) (prefix netip.Prefix, via netip.Addr, dev string, err error) {
	if prefix, err = netip.ParsePrefix(args[0]); err != nil || prefix != prefix.Masked() {
		return prefix, via, "", usageError{fmt.Errorf("want a prefix such as 10.9.1.0/24, got %q", args[0])}
	}
	rest := args[1:]
	for ; len(rest) >= 2; rest = rest[2:] {
		switch rest[0] {
		case "via":
			if via, err = netip.ParseAddr(rest[1]); err != nil {
				return prefix, via, "", usageError{fmt.Errorf("via: want an address, got %q", rest[1])}
			}
		case "dev":
			dev = rest[1]
		default:
			return prefix, via, "", usageError{fmt.Errorf("want via or dev, got %q", rest[0])}
		}
	}
	if len(rest) > 0 {
		return prefix, via, "", usageError{fmt.Errorf("%s: want a value", rest[0])}
	}
	return prefix, via, dev, nil
}

// addPatience is how long add waits for tapird to make the route usable.
const addPatience = 2 * time.Second

func addXDPRoute(cmd *cobra.Command, o *options, args []string) error {
	prefix, via, dev, err := parseRoute(args)
	if err != nil {
		return err
	}
	if !via.IsValid() {
		return usageError{fmt.Errorf("want via NEXTHOP, got %q", args)}
	}
	index, name, err := deviceTowards(via)
	if err != nil {
		return err
	}
	if dev != "" && dev != name {
		return fmt.Errorf("the node's routes lead to %s by %q, want %q", via, name, dev)
	}
	s, err := xdp.EnsureShortcut(o.bpffs)
	if err != nil {
		return err
	}
	defer s.Close()
	err = uplink.WithRoutes(o.bpffs, func() error {
		all, readErr := s.Routes()
		if old, ok := all[prefix]; readErr != nil || ok && old.Addr == via && old.Uplink == uint32(index) {
			return readErr // it is kept by now
		}
		return s.SetRoute(prefix, xdp.NextHop{Addr: via, Uplink: uint32(index)})
	})
	if err == nil {
		err = uplink.Touch(o.bpffs)
	}
	if err != nil {
		return err
	}
	row, err := awaitRoute(o, s, prefix)
	if err != nil {
		return err
	}
	if !row.Usable {
		fmt.Fprintf(cmd.ErrOrStderr(), "tapirctl: %s is not usable: %s\n", prefix, row.Why)
	}
	return say(cmd, o, row, "%s via %s dev %s: usable: %t", prefix, via, name, row.Usable)
}

// deviceTowards is the device by which the node sends to a next hop.
func deviceTowards(via netip.Addr) (index int, name string, err error) {
	routes, err := netlink.RouteGet(via.AsSlice())
	if err != nil || len(routes) == 0 {
		return 0, "", fmt.Errorf("look up the route to %s: %w", via, err)
	}
	link, err := netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return 0, "", fmt.Errorf("look up device %d: %w", routes[0].LinkIndex, err)
	}
	return link.Attrs().Index, link.Attrs().Name, nil
}

// awaitRoute waits for tapird's answer and gives the route as it is then.
func awaitRoute(o *options, s *xdp.Shortcut, prefix netip.Prefix) (xdpRoute, error) {
	for deadline := time.Now().Add(addPatience); ; time.Sleep(20 * time.Millisecond) {
		rows, err := xdpRoutes(o, s)
		if err != nil {
			return xdpRoute{}, err
		}
		i := slices.IndexFunc(rows, func(r xdpRoute) bool { return r.Prefix == prefix })
		if i < 0 {
			return xdpRoute{}, fmt.Errorf("route %s: somebody deleted it meanwhile", prefix)
		}
		if rows[i].Usable || time.Now().After(deadline) {
			return rows[i], nil
		}
	}
}

func deleteXDPRoute(cmd *cobra.Command, o *options, args []string) error {
	prefix, _, _, err := parseRoute(args)
	if err != nil {
		return err
	}
	s, err := openMaps(o)
	if err != nil {
		return err
	}
	if s != nil {
		defer s.Close()
		if err := uplink.WithRoutes(o.bpffs, func() error { return s.DeleteRoute(prefix) }); err != nil {
			return err
		}
		if err := uplink.Touch(o.bpffs); err != nil {
			return err
		}
	}
	return say(cmd, o, map[string]string{"deleted": prefix.String()}, "%s: deleted", prefix)
}

// xdpRoute is a route as the map has it.
type xdpRoute struct {
	Prefix netip.Prefix `json:"prefix"`
	Via    netip.Addr   `json:"via"`
	Uplink string       `json:"uplink"`
	Usable bool         `json:"usable"`
	MAC    string       `json:"mac,omitempty"`
	MTU    int          `json:"mtu,omitempty"`
	Why    string       `json:"why,omitempty"` // it is not usable
}

func xdpRoutes(o *options, s *xdp.Shortcut) ([]xdpRoute, error) {
	all, err := s.Routes()
	if err != nil {
		return nil, err
	}
	rows := make([]xdpRoute, 0, len(all))
	var wanted []uplink.Route
	for prefix, r := range all {
		name := fmt.Sprint(r.Uplink)
		if link, err := netlink.LinkByIndex(int(r.Uplink)); err == nil {
			name = link.Attrs().Name
		}
		row := xdpRoute{Prefix: prefix, Via: r.Addr, Uplink: name, Usable: r.Usable, MTU: r.MTU}
		if r.Usable {
			row.MAC = r.DstMAC.String()
		}
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(a, b xdpRoute) int {
		if c := a.Prefix.Addr().Compare(b.Prefix.Addr()); c != 0 {
			return c
		}
		return a.Prefix.Bits() - b.Prefix.Bits()
	})
	for _, r := range rows {
		wanted = append(wanted, uplink.Route{Prefix: r.Prefix, Via: r.Via})
	}
	hops, err := uplink.Explain(o.bpffs, wanted)
	if err != nil {
		return nil, err
	}
	for i, h := range hops {
		switch {
		case rows[i].Usable:
		case h.Usable:
			rows[i].Why = "tapird does not keep it: does it run, with uplink: true?"
		default:
			rows[i].Why = h.Why
		}
	}
	return rows, nil
}

func listXDPRoutes(cmd *cobra.Command, o *options) error {
	s, err := openMaps(o)
	if err != nil {
		return err
	}
	rows := []xdpRoute{}
	if s != nil {
		defer s.Close()
		if rows, err = xdpRoutes(o, s); err != nil {
			return err
		}
	}
	if o.output == "json" {
		return printJSON(cmd.OutOrStdout(), rows)
	}
	w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "PREFIX\tVIA\tUPLINK\tUSABLE\tMAC\tMTU\tNOTE")
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%s\n", r.Prefix, r.Via, r.Uplink, yesNo(r.Usable), dash(r.MAC), r.MTU, dash(strings.TrimSpace(r.Why)))
	}
	return w.Flush()
}
