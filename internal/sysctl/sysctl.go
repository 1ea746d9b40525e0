// Package sysctl reads and writes sysctls by their path below /proc/sys, such as "net/ipv4/ip_forward". Those of
// net belong to the network namespace of the calling thread.
package sysctl

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Root is where the sysctls are mounted.
const Root = "/proc/sys"

// Get reads a sysctl, without the newline. A sysctl that this kernel does not have is [fs.ErrNotExist].
func Get(name string) (string, error) {
	b, err := os.ReadFile(filepath.Join(Root, name))
	if err != nil {
		return "", fmt.Errorf("read sysctl %s: %w", name, cause(err))
	}
	return strings.TrimSpace(string(b)), nil
}

// Set writes a sysctl.
func Set(name, value string) error {
	if err := os.WriteFile(filepath.Join(Root, name), []byte(value), 0); err != nil {
		return fmt.Errorf("set sysctl %s to %s: %w", name, value, cause(err))
	}
	return nil
}

// Writable reports whether a sysctl can be written: /proc/sys is read-only in many containers.
func Writable(name string) bool {
	return unix.Access(filepath.Join(Root, name), unix.W_OK) == nil
}

// Interfaces are the names below a per-interface folder of sysctls, such as "net/ipv6/conf", without all, default and lo.
func Interfaces(folder string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(Root, folder))
	if err != nil {
		return nil, fmt.Errorf("list sysctls %s: %w", folder, cause(err))
	}
	var names []string
	for _, e := range entries {
		if n := e.Name(); n != "all" && n != "default" && n != "lo" {
			names = append(names, n)
		}
	}
	return names, nil
}

// cause drops the path from an error of os: it is in the text already.
func cause(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}
