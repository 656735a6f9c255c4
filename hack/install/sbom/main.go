// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Command sbom writes the modules that the given programs contain as CycloneDX 1.6: the information of go version -m in the format that scanners read.
package main

import (
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
)

type component struct {
	Type    string `json:"type"`
	Ref     string `json:"bom-ref"`
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	PURL    string `json:"purl,omitempty"`
}

type dependency struct {
	Ref       string   `json:"ref"`
	DependsOn []string `json:"dependsOn,omitempty"`
}

type bom struct {
	Format       string       `json:"bomFormat"`
	SpecVersion  string       `json:"specVersion"`
	Version      int          `json:"version"`
	Components   []component  `json:"components"`
	Dependencies []dependency `json:"dependencies"`
}

func main() {
	if err := run(os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(out io.Writer, programs []string) error {
	modules := map[string]component{}
	written := bom{Format: "CycloneDX", SpecVersion: "1.6", Version: 1}
	for _, program := range programs {
		info, err := buildinfo.ReadFile(program)
		if err != nil {
			return fmt.Errorf("read build information of %s: %w", program, err)
		}
		name := filepath.Base(program)
		written.Components = append(written.Components, component{Type: "application", Ref: name, Name: name, Version: info.Main.Version})
		needs := map[string]bool{}
		for _, module := range append(info.Deps, &debug.Module{Path: "stdlib", Version: info.GoVersion[len("go"):]}) {
			if module.Replace != nil {
				module = module.Replace
			}
			purl := "pkg:golang/" + module.Path + "@" + module.Version
			modules[purl] = component{Type: "library", Ref: purl, Name: module.Path, Version: module.Version, PURL: purl}
			needs[purl] = true
		}
		written.Dependencies = append(written.Dependencies, dependency{Ref: name, DependsOn: slices.Sorted(maps.Keys(needs))})
	}
	for _, purl := range slices.Sorted(maps.Keys(modules)) {
		written.Components = append(written.Components, modules[purl])
	}
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(written)
}
