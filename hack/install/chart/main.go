// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Command chart writes the generated files of charts/berth, by default in the project: files/ with copies of the manifests below config/, and README.md from
// values.yaml.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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
	root := filepath.Join("..", "..")
	to := flag.String("to", root, "directory that receives the files of the chart")
	flag.Parse()
	if err := run(root, *to); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run replaces the generated files of the chart below a directory.
func run(root, to string) error {
	files, err := generate(root)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(to, "charts/berth/files")); err != nil {
		return err
	}
	for file, text := range files {
		path := filepath.Join(to, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// generate returns the generated files of the chart, by path in the project.
func generate(root string) (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, c := range copied {
		sources, err := filepath.Glob(filepath.Join(root, c.from, c.pattern))
		if err != nil {
			return nil, err
		}
		for _, file := range sources {
			if slices.Contains(left, filepath.Base(file)) {
				continue
			}
			text, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			files[filepath.Join("charts/berth/files", c.to, filepath.Base(file))] = text
		}
	}
	values, err := os.ReadFile(filepath.Join(root, "charts/berth/values.yaml"))
	if err != nil {
		return nil, err
	}
	readme, err := readme(values)
	files["charts/berth/README.md"] = readme
	return files, err
}
