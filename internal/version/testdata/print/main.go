// Command print prints the version it was linked with; the test of package version builds it.
package main

import (
	"fmt"

	"github.com/tapir-cni/tapir/internal/version"
)

func main() { fmt.Println(version.String()) }
