// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Command chart updates charts/berth: files/ with copies of the manifests below config/, and README.md from values.yaml. With -check it changes nothing and
// fails if a file is stale.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// copied maps each folder of config/ to the folder of files/ that its manifests are copied to.
var copied = []struct{ from, to, pattern string }{
	{"config/crd/bases", "crds", "*.yaml"},
	{"config/rbac", "rbac", "*.yaml"},
	{"config/rbac/cluster", "rbac", "*.yaml"},
	{"config/policy", "policy", "*.yaml"},
	{"config/prometheus", "prometheus", "*.yaml"},
	{"config/prometheus", "prometheus", "*.json"},
}

// left are the files that are not copied, because the chart contains templates for them or does not need them.
var left = []string{"kustomization.yaml", "parameters.yaml"}

func main() {
	check := flag.Bool("check", false, "change nothing; fail if a file is stale")
	root := flag.String("root", filepath.Join("..", ".."), "root directory of the project")
	flag.Parse()
	if err := run(*root, *check); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(root string, check bool) error {
	wanted, err := generate(root)
	if err != nil {
		return err
	}
	stale, err := compare(root, wanted)
	if err != nil || len(stale) == 0 {
		return err
	}
	if check {
		return fmt.Errorf("stale: %s; run make chart", strings.Join(stale, ", "))
	}
	return write(root, stale, wanted)
}

// generate returns the expected generated files of the chart, by path in the project.
func generate(root string) (map[string][]byte, error) {
	wanted := map[string][]byte{}
	for _, c := range copied {
		files, err := filepath.Glob(filepath.Join(root, c.from, c.pattern))
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			if slices.Contains(left, filepath.Base(file)) {
				continue
			}
			text, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			wanted[filepath.Join("charts/berth/files", c.to, filepath.Base(file))] = text
		}
	}
	values, err := os.ReadFile(filepath.Join(root, "charts/berth/values.yaml"))
	if err != nil {
		return nil, err
	}
	readme, err := readme(values)
	wanted["charts/berth/README.md"] = readme
	return wanted, err
}

// compare returns the files that differ, are missing, or should not exist.
func compare(root string, wanted map[string][]byte) ([]string, error) {
	var stale []string
	for _, file := range slices.Sorted(maps.Keys(wanted)) {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		if err != nil || !bytes.Equal(text, wanted[file]) {
			stale = append(stale, file)
		}
	}
	there, err := filepath.Glob(filepath.Join(root, "charts/berth/files/*/*"))
	if err != nil {
		return nil, err
	}
	for _, file := range there {
		relative, err := filepath.Rel(root, file)
		if err != nil {
			return nil, err
		}
		if wanted[relative] == nil {
			stale = append(stale, relative)
		}
	}
	return stale, nil
}

// write updates stale files and removes files that should not exist.
func write(root string, stale []string, wanted map[string][]byte) error {
	for _, file := range stale {
		path := filepath.Join(root, file)
		if wanted[file] == nil {
			if err := os.Remove(path); err != nil {
				return err
			}
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, wanted[file], 0o644); err != nil {
			return err
		}
	}
	return nil
}
