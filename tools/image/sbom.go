package main

import (
	"bytes"
	"debug/buildinfo"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/CycloneDX/cyclonedx-go"
)

// bom lists the programs and the modules that they were built from, as Go's linker wrote them into them.
func bom(name string, programs []string) ([]byte, error) {
	list := cyclonedx.NewBOM()
	list.Metadata = &cyclonedx.Metadata{Component: &cyclonedx.Component{Type: cyclonedx.ComponentTypeContainer, Name: name}}
	modules := map[string]cyclonedx.Component{}
	var components []cyclonedx.Component
	for _, program := range programs {
		info, err := buildinfo.ReadFile(program)
		if err != nil {
			continue // no Go program: it has no modules
		}
		components = append(components, cyclonedx.Component{Type: cyclonedx.ComponentTypeApplication, Name: filepath.Base(program), Version: info.Main.Version})
		purl := "pkg:golang/std@" + strings.TrimPrefix(info.GoVersion, "go")
		modules[purl] = cyclonedx.Component{Type: cyclonedx.ComponentTypeLibrary, BOMRef: purl, Name: "std", Version: info.GoVersion, PackageURL: purl}
		for _, m := range info.Deps {
			if m.Replace != nil {
				m = m.Replace
			}
			purl := "pkg:golang/" + m.Path + "@" + m.Version
			modules[purl] = cyclonedx.Component{Type: cyclonedx.ComponentTypeLibrary, BOMRef: purl, Name: m.Path, Version: m.Version, PackageURL: purl}
		}
	}
	if len(components) == 0 {
		return nil, fmt.Errorf("no Go program among %q", programs)
	}
	for _, m := range modules {
		components = append(components, m)
	}
	slices.SortFunc(components, func(a, b cyclonedx.Component) int { return strings.Compare(a.PackageURL+a.Name, b.PackageURL+b.Name) })
	list.Components = &components
	var out bytes.Buffer
	enc := cyclonedx.NewBOMEncoder(&out, cyclonedx.BOMFileFormatJSON)
	enc.SetPretty(true)
	if err := enc.Encode(list); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
