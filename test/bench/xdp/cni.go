package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"

	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// ifName is the CNI_IFNAME of every call.
const ifName = "eth0"

// call runs the plugin for one sandbox and gives what it printed. prevResult is for DEL.
func (n network) call(command, id, netns string, prevResult []byte) ([]byte, error) {
	config := n.config
	if prevResult != nil {
		config = make(map[string]any, len(n.config)+1)
		for key, value := range n.config {
			config[key] = value
		}
		config["prevResult"] = json.RawMessage(prevResult)
	}
	stdin, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(n.plugin)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &stdout, &stderr
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "CNI_COMMAND=" + command, "CNI_CONTAINERID=" + id, "CNI_NETNS=" + netns,
		"CNI_IFNAME=" + ifName, "CNI_PATH=" + n.path,
	}
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s of %s: %w: %s %s", command, n.config["name"], err, strings.TrimSpace(stdout.String()), strings.TrimSpace(stderr.String()))
	}
	return stdout.Bytes(), nil
}

// attachment is what a result says of one sandbox.
type attachment struct {
	tap     string // in the sandbox beside ifName; empty where the plugin makes none
	host    string // host end of the veth
	mac     net.HardwareAddr
	address netip.Prefix
	gateway netip.Addr
}

// readResult reads the result of ADD. Of several devices of the node the last is the host end: bridge names the bridge
// first.
func readResult(stdout []byte, netns string) (attachment, error) {
	parsed, err := types100.NewResult(stdout)
	if err != nil {
		return attachment{}, fmt.Errorf("read the result: %w", err)
	}
	result, err := types100.GetResult(parsed)
	if err != nil {
		return attachment{}, err
	}
	var a attachment
	for _, i := range result.Interfaces {
		switch {
		case i.Sandbox == "":
			a.host = i.Name
		case i.Sandbox == netns && i.Name == ifName:
			if a.mac, err = net.ParseMAC(i.Mac); err != nil {
				return attachment{}, fmt.Errorf("interface %q: %w", i.Name, err)
			}
		case i.Sandbox == netns:
			a.tap = i.Name
		}
	}
	for _, ip := range result.IPs {
		if ip.Address.IP.To4() == nil {
			continue
		}
		if a.address, err = netip.ParsePrefix(ip.Address.String()); err != nil {
			return attachment{}, err
		}
		if a.gateway, err = netip.ParseAddr(ip.Gateway.String()); err != nil {
			return attachment{}, err
		}
	}
	if a.host == "" || a.mac == nil || !a.address.IsValid() {
		return attachment{}, fmt.Errorf("the result names no host end, MAC or IPv4 address: %s", stdout)
	}
	return a, nil
}
