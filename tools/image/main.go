// Command image makes a container image of static programs on nothing, as an OCI archive that "ctr image import" and "kind load image-archive"
// take. It needs no registry and no root, and the same files give the same bytes.
//
//	image -o tapir.tar -name localhost/tapir-cni/tapir:devel -entrypoint /opt/tapir/bin/tapird -platform linux/amd64=bin/amd64 -platform linux/arm64=bin/arm64
//
// Each platform's folder becomes one layer, the folder's paths those of the image.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
)

// platforms are pairs of a platform and a folder, in the order they were given.
type platforms [][2]string

func (p *platforms) String() string { return fmt.Sprint(*p) }

func (p *platforms) Set(s string) error {
	name, folder, ok := strings.Cut(s, "=")
	if !ok || strings.Count(name, "/") != 1 || folder == "" {
		return fmt.Errorf("want OS/ARCHITECTURE=FOLDER, got %q", s)
	}
	*p = append(*p, [2]string{name, folder})
	return nil
}

type labels map[string]string

func (l labels) String() string { return "" }

func (l labels) Set(s string) error {
	key, value, ok := strings.Cut(s, "=")
	if !ok || key == "" {
		return fmt.Errorf("want KEY=VALUE, got %q", s)
	}
	l[key] = value
	return nil
}

func main() {
	o := options{labels: labels{}}
	flag.StringVar(&o.out, "o", "", "`file` to write; it is replaced whole")
	flag.StringVar(&o.name, "name", "", "full `name` and tag")
	flag.StringVar(&o.entrypoint, "entrypoint", "", "`path` in the image")
	flag.StringVar(&o.sbom, "sbom", "", "`folder` of the image in which a CycloneDX SBOM is put; empty: none")
	flag.StringVar(&o.boms, "boms", "", "`folder` in which the SBOM of each platform is put as well, as NAME.ARCHITECTURE.cdx.json; without -o nothing else is made")
	flag.Var(&o.platforms, "platform", "`OS/ARCHITECTURE=FOLDER`, once or more")
	flag.Var(o.labels, "label", "`KEY=VALUE`, any number of times")
	flag.Parse()
	if err := o.check(); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(2)
	}
	if err := o.build(); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func (o *options) check() error {
	var faults []error
	needed := map[string]string{"o": o.out, "name": o.name, "entrypoint": o.entrypoint}
	if o.boms != "" && o.out == "" {
		needed = map[string]string{"name": o.name}
	}
	for name, value := range needed {
		if value == "" {
			faults = append(faults, fmt.Errorf("-%s: want a value, got none", name))
		}
	}
	if len(o.platforms) == 0 {
		faults = append(faults, errors.New("-platform: want one or more, got none"))
	}
	if flag.NArg() > 0 {
		faults = append(faults, fmt.Errorf("want flags alone, got %q", flag.Args()))
	}
	return errors.Join(faults...)
}
