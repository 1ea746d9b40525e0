// Command tapir-ipam is tapir's IPAM as a CNI plugin of its own, for any other plugin to use.
package main

import "github.com/tapir-cni/tapir/ipam"

func main() { ipam.Main() }
