package uplink

import (
	"errors"

	"github.com/tapir-cni/tapir/internal/rtnl"
)

// Explain says what tapird would make of routes now, in the calling thread's netns, and why one is not usable. It changes nothing.
func Explain(dir string, routes []Route) ([]Hop, error) {
	table, err := OpenPinned(dir)
	if err != nil {
		return nil, err
	}
	uplinks, err := table.Uplinks()
	if err = errors.Join(err, table.Close()); err != nil {
		return nil, err
	}
	conn, err := rtnl.Open()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	r := &resolver{conn: conn, uplinks: uplinks, routed: map[int][]routed{}}
	hops := make([]Hop, len(routes))
	for i, rt := range routes {
		if hops[i], _, err = r.hop(rt); err != nil {
			return nil, err
		}
	}
	return hops, nil
}
