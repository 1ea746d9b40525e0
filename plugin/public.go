package plugin

import (
	"fmt"

	"github.com/google/nftables"
	"github.com/tapir-cni/tapir/internal/rtnl"
	"github.com/tapir-cni/tapir/state"
)

// Inspect compares an attachment with the kernel, as CHECK does, and names what differs. bpffs is the folder of the pinned
// programs. The error is for a sandbox or a kernel that could not be asked.
func Inspect(rec state.Attachment, bpffs string) ([]string, error) {
	return (&plugin{bpffs: bpffs}).inspect(rec)
}

// DefaultRouteMTU is the MTU that "mtu": 0 stands for on this node, in bytes.
func DefaultRouteMTU() (int, error) {
	host, err := rtnl.Open()
	if err != nil {
		return 0, err
	}
	defer host.Close()
	return defaultRouteMTU(host)
}

// MasqueradeUsable reports why "ipMasq" could not work here, or nil.
func MasqueradeUsable() error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	if _, err := conn.ListTablesOfFamily(nftables.TableFamilyINet); err != nil {
		return fmt.Errorf("list nftables tables: %w", err)
	}
	return nil
}
