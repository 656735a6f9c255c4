// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// report is the strategy of the phase Apply. It writes the findings to a file in the reports directory.
func report(j *job) error {
	var (
		files    []source
		findings []finding
		packages map[string]about
	)
	if err := load(strategized, "list-files", "files.json", &files); err != nil {
		return err
	}
	if err := load(executed, "search-module", "findings.json", &findings); err != nil {
		return err
	}
	if err := load(executed, "summarize-module", "packages.json", &packages); err != nil {
		return err
	}
	lines := 0
	for _, s := range files {
		lines += s.Lines
	}
	var text strings.Builder
	fmt.Fprintf(&text, "# %s\n\n", filepath.Base(j.module))
	fmt.Fprintf(&text, "%d files, %d lines. Plan %s, attempt %s.\n\n## Results\n\n", len(files), lines, j.plan, j.attempt)
	if err := sentences(&text); err != nil {
		return err
	}
	fmt.Fprintf(&text, "\n## Packages\n\n")
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
	if err := write(path, []byte(text.String())); err != nil {
		return err
	}
	fmt.Println("wrote", path)
	return os.WriteFile(os.Getenv("BERTH_RESULT_FILE"), []byte("The report is "+path), 0o644)
}

// sentences writes the result of each strategy of the phase Execute.
func sentences(text *strings.Builder) error {
	results, err := earlier(executed)
	if err != nil {
		return err
	}
	for _, strategy := range slices.Sorted(maps.Keys(results)) {
		sentence, err := results[strategy].sentence()
		if err != nil {
			return err
		}
		fmt.Fprintf(text, "- %s: %s\n", strategy, strings.TrimSpace(sentence))
	}
	return nil
}

// write replaces the file atomically, so that a reader never sees part of it. Writing the same text again changes nothing.
func write(path string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	temp, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(temp.Name()) }() // exists only after a failure
	if _, err := temp.Write(text); err != nil {
		_ = temp.Close()
		return err
	}
	if err := temp.Chmod(0o644); err != nil {
		_ = temp.Close()
		return err
	}
	if err := temp.Close(); err != nil {
		return err
	}
	return os.Rename(temp.Name(), path)
}
