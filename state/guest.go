package state

import "net/netip"

// Inside is what the guest has in place of the pod's address of that family, where it brings an identity of its own; ok is false
// where the guest has the pod's.
func (a Attachment) Inside(is4 bool) (inside Address, ok bool) {
	for _, g := range a.Guest {
		if g.Prefix.Addr().Is4() == is4 {
			return g, true
		}
	}
	return Address{}, false
}

// GuestAddresses are the addresses that the guest is to have, IPv4 first: the pod's, or its own in place of them.
func (a Attachment) GuestAddresses() []Address {
	var out []Address
	for _, addr := range a.Addresses {
		if inside, ok := a.Inside(addr.Prefix.Addr().Is4()); ok {
			addr = inside
		}
		out = append(out, addr)
	}
	return out
}

// GuestRoutes are the routes that the guest is to have. Where it brings an address of its own, its gateway is the way to all.
func (a Attachment) GuestRoutes() []Route {
	var out []Route
	for _, r := range a.Routes {
		if inside, ok := a.Inside(r.Dst.Addr().Is4()); ok {
			r.GW = inside.Gateway
		}
		out = append(out, r)
	}
	return out
}

// Outside are the addresses of the pod in whose place the guest has others: IPv4 first.
func (a Attachment) Outside() []netip.Addr {
	var out []netip.Addr
	for _, addr := range a.Addresses {
		if _, ok := a.Inside(addr.Prefix.Addr().Is4()); ok {
			out = append(out, addr.Prefix.Addr())
		}
	}
	return out
}
