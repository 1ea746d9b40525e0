package tap

import (
	"strings"

	"golang.org/x/sys/unix"
)

// FlagNames gives the names of IFF_* flags of a tun device as people write them, in a fixed order, joined by '|'.
// Flags without a name are left out.
func FlagNames(flags uint16) string {
	var names []string
	for _, f := range []struct {
		bit  uint16
		name string
	}{
		{unix.IFF_TUN, "TUN"}, {unix.IFF_TAP, "TAP"}, {unix.IFF_NO_PI, "NO_PI"}, {unix.IFF_VNET_HDR, "VNET_HDR"},
		{unix.IFF_MULTI_QUEUE, "MULTI_QUEUE"}, {unix.IFF_NAPI, "NAPI"}, {unix.IFF_NAPI_FRAGS, "NAPI_FRAGS"},
		{unix.IFF_PERSIST, "PERSIST"},
	} {
		if flags&f.bit != 0 {
			names = append(names, f.name)
		}
	}
	return strings.Join(names, "|")
}
