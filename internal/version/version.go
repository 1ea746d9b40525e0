// Package version says which tapir this is.
package version

import "runtime/debug"

// version is set by the linker (see the Makefile): what git describe says of the tree that was built.
var version string

// String is the version that the linker was given, else the one that the Go command recorded ("go install
// module@version"), else "devel".
func String() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}
