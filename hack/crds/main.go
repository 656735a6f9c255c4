// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Command crds changes the generated CustomResourceDefinitions in the given folders so that the API server tracks one owner for each condition as a whole
// instead of one for each of its fields. Conditions remain a list with a key: a client that applies a condition owns that condition. With one owner for each
// field, the managed fields of nine conditions made up most of the size of an object and a large part of the cost of every status write. This command is needed
// because controller-gen has no marker for the items of a list whose type is defined in another module.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// word marks an object as atomic, so that it has one owner as a whole.
const word = "x-kubernetes-map-type: atomic"

func main() {
	if len(os.Args) < 2 {
		fail(errors.New("usage: crds FOLDER [FOLDER ...]"))
	}
	for _, folder := range os.Args[1:] {
		files, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
		if err != nil || len(files) == 0 {
			fail(fmt.Errorf("%s contains no CustomResourceDefinitions; generate them with make manifests", folder))
		}
		for _, file := range files {
			if err := rewrite(file); err != nil {
				fail(err)
			}
		}
	}
}

func rewrite(file string) error {
	before, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	after := atomicConditions(before)
	if bytes.Equal(before, after) {
		return nil
	}
	return os.WriteFile(file, after, 0o644)
}

// atomicConditions adds word to the items of every list whose key is type, such as conditions. In generated YAML, the last property of the items is
// "type: object", indented by two more spaces than the properties of the list.
func atomicConditions(text []byte) []byte {
	var out []string
	lines := strings.Split(string(text), "\n")
	for i, line := range lines {
		deeper, isKey := strings.CutSuffix(line, "x-kubernetes-list-map-keys:")
		if isKey && i+1 < len(lines) && strings.TrimSpace(lines[i+1]) == "- type" {
			deeper += "  "
			// If the file was changed by an earlier run, lastOf finds the line with the constant word, so nothing is inserted again.
			if at := lastOf(out, deeper+"type: object", deeper+word); at >= 0 && out[at] != deeper+word {
				out = slices.Insert(out, at+1, deeper+word)
			}
		}
		out = append(out, line)
	}
	return []byte(strings.Join(out, "\n"))
}

// lastOf returns the index of the last line that equals one of wanted, or -1.
func lastOf(lines []string, wanted ...string) int {
	for i, line := range slices.Backward(lines) {
		if slices.Contains(wanted, line) {
			return i
		}
	}
	return -1
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "crds:", err)
	os.Exit(1)
}
