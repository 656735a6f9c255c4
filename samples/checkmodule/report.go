// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// report lets the plan take effect: it writes what was found where people look for it.
func report(j *job) error {
	var (
		files    []source
		findings []finding
		packages map[string]about
	)
	for name, into := range map[string]any{"files.json": &files, "findings.json": &findings, "packages.json": &packages} {
		if err := j.load(name, into); err != nil {
			return err
		}
	}
	lines := 0
	for _, s := range files {
		lines += s.Lines
	}
	var text strings.Builder
	fmt.Fprintf(&text, "# %s\n\n", filepath.Base(j.module))
	fmt.Fprintf(&text, "%d files, %d lines. The tests pass. Plan %s, attempt %s.\n\n## Packages\n\n", len(files), lines, j.plan, j.attempt)
	for _, name := range slices.Sorted(maps.Keys(packages)) {
		fmt.Fprintf(&text, "- %s (%d functions): %s\n", name, packages[name].Functions, packages[name].Synopsis)
	}
	fmt.Fprintf(&text, "\n## Findings\n\n")
	for _, f := range findings {
		fmt.Fprintf(&text, "- %s:%d: %s\n", f.Path, f.Line, f.Text)
	}
	if len(findings) == 0 {
		text.WriteString("None.\n")
	}
	path := filepath.Join(j.reports, j.plan+".md")
	fmt.Println("writing", path)
	return write(path, []byte(text.String()))
}
