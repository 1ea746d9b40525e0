// Command tapir is the CNI plugin that a container runtime calls for each pod sandbox.
package main

import "github.com/tapir-cni/tapir/plugin"

func main() { plugin.Main() }
