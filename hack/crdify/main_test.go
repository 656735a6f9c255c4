// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCompare changes the definition of Strategies in a copy of the released definitions.
func TestCompare(t *testing.T) {
	const file = "strategies.berth.dev.yaml"
	for _, test := range []struct {
		name, old, new string
		want           string // part of the only line; empty for a compatible change
	}{
		{name: "nothing changed"},
		{name: "an optional field is new", old: "spec:\n            properties:\n", new: "spec:\n            properties:\n              added:\n                type: string\n"},
		{name: "a field was renamed", old: "              description:\n", new: "              summary:\n", want: "existingFieldRemoval"},
		{name: "a limit is lower", old: "maxLength: 1024\n", new: "maxLength: 10\n", want: "maxLength"},
		{name: "the version is gone", old: "    name: v1alpha1\n", new: "    name: v1alpha2\n", want: "v1alpha1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			folder := t.TempDir()
			if err := os.CopyFS(folder, os.DirFS("released")); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(folder, file)
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(text), test.old) {
				t.Fatalf("%s does not contain %q; change the test", file, test.old)
			}
			if err := os.WriteFile(path, []byte(strings.Replace(string(text), test.old, test.new, 1)), 0o644); err != nil {
				t.Fatal(err)
			}
			lines, err := compare("released", folder)
			if err != nil {
				t.Fatal(err)
			}
			if found := strings.Join(lines, "\n"); test.want == "" && found != "" || !strings.Contains(found, test.want) {
				t.Errorf("found %q, want a line that contains %q", found, test.want)
			}
		})
	}
}

func TestCompareRemovedDefinition(t *testing.T) {
	folder := t.TempDir()
	if err := os.CopyFS(folder, os.DirFS("released")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(folder, "plans.berth.dev.yaml")); err != nil {
		t.Fatal(err)
	}
	lines, err := compare("released", folder)
	if err != nil {
		t.Fatal(err)
	}
	if len(lines) != 1 || !strings.Contains(lines[0], "plans.berth.dev: the definition was removed") {
		t.Errorf("found %q", lines)
	}
}
