package main

import (
	"fmt"
	"os/exec"
	"strings"
)

// trackingRules have no effect but that the kernel tracks connections in this netns, which it does once a rule asks for their
// state.
const trackingRules = `table inet bench { chain forward { type filter hook forward priority 0; ct state established,related accept; }; }`

func trackConnections() error {
	nft := exec.Command("nft", "-f", "-")
	nft.Stdin = strings.NewReader(trackingRules)
	if out, err := nft.CombinedOutput(); err != nil {
		return fmt.Errorf("have the node track connections: nft: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}
