// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Command crds changes the generated CustomResourceDefinitions in the given folders in two ways.
//
// The API server tracks one owner for each condition as a whole instead of one for each of its fields. Conditions remain a list with a key: a client that
// applies a condition owns that condition. With one owner for each field, the managed fields of nine conditions made up most of the size of an object and a
// large part of the cost of every status write.
//
// The API server accepts only times and quantities that Go programs decode. Without these patterns, one object with a time such as 2026-01-02T03:04Z or a
// quantity such as 1e1.5 would stop each list and watch of its kind, and the quantity 1e2147483647 would make a decoder compute for hours.
//
// This command is needed because controller-gen has no marker for the fields of a type that is defined in another module.
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

const (
	// generatedQuantity is the pattern that controller-gen writes. It permits fractional exponents, which do not decode, and exponents without a bound.
	generatedQuantity = `pattern: ^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$`
	quantity          = `pattern: ^[-+]?([0-9]{1,32}(\.[0-9]{0,32})?|\.[0-9]{1,32})([KMGTPE]i|[numkMGTPE]|[eE][-+]?[0-9]{1,2})?$`

	dateTime = "format: date-time"
	// microTime is the form that metav1.MicroTime decodes, and secondsTime is the form that metav1.Time decodes. The format excludes other invalid times.
	microTime   = `pattern: ^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}(Z|[-+]([01][0-9]|2[0-3]):[0-5][0-9])$`
	secondsTime = `pattern: ^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?(Z|[-+]([01][0-9]|2[0-3]):[0-5][0-9])$`
)

// secondsTimes are the fields of the type metav1.Time. All other times have the type metav1.MicroTime.
var secondsTimes = []string{"lastTransitionTime:", "lastActivityTime:"}

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
	after := decodableValues(atomicConditions(before))
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

// decodableValues replaces the pattern of every quantity and adds a pattern to every time. In generated YAML, properties are sorted by name, so a pattern
// follows a format, and the line with the name of a field is indented by two spaces less than its properties.
func decodableValues(text []byte) []byte {
	var out []string
	field := map[int]string{} // by indentation, the last line
	lines := strings.Split(string(text), "\n")
	for i, line := range lines {
		content := strings.TrimLeft(line, " ")
		indent := line[:len(line)-len(content)]
		field[len(indent)] = content
		if content == generatedQuantity {
			line = indent + quantity
		}
		out = append(out, line)
		if content == dateTime && !strings.HasPrefix(lines[min(i+1, len(lines)-1)], indent+"pattern: ") {
			pattern := microTime
			if slices.Contains(secondsTimes, field[len(indent)-2]) {
				pattern = secondsTime
			}
			out = append(out, indent+pattern)
		}
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
