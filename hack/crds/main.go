// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Command crds has the API server keep one owner for each condition as a whole, not for each of its fields, in the generated
// CustomResourceDefinitions of the folders given. Conditions stay a list with a key: whoever applies one owns that one. The owners of the fields of
// nine conditions were most of an object, and a good part of what every write of a status took. controller-gen has no marker for the
// items of a list whose type is not ours.
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

// word says that an object has one owner as a whole.
const word = "x-kubernetes-map-type: atomic"

func main() {
	if len(os.Args) < 2 {
		fail(errors.New("name the folders of the CustomResourceDefinitions"))
	}
	for _, folder := range os.Args[1:] {
		files, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
		if err != nil || len(files) == 0 {
			fail(fmt.Errorf("%s has no CustomResourceDefinitions: generate them first, with make manifests", folder))
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

// atomicConditions adds the word to the items of every list that has the type as its key, as conditions have. In generated YAML, the last that is
// said of the items is that they are objects, two deeper than what is said of the list.
func atomicConditions(text []byte) []byte {
	var out []string
	lines := strings.Split(string(text), "\n")
	for i, line := range lines {
		deeper, isKey := strings.CutSuffix(line, "x-kubernetes-list-map-keys:")
		if isKey && i+1 < len(lines) && strings.TrimSpace(lines[i+1]) == "- type" {
			deeper += "  "
			// Where this was done before, the word itself is found.
			if at := lastOf(out, deeper+"type: object", deeper+word); at >= 0 && out[at] != deeper+word {
				out = slices.Insert(out, at+1, deeper+word)
			}
		}
		out = append(out, line)
	}
	return []byte(strings.Join(out, "\n"))
}

// lastOf gives where the last line is that is one of these, or -1.
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
