// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// FindAssets returns the folder that contains the binaries of the control plane: the given folder, or else the first of KUBEBUILDER_ASSETS, the folder of this
// executable, and the folders in PATH that contains all of them. It never searches relative to the working directory, where another user may have placed
// programs with these names. The error explains how to get the binaries.
func FindAssets(given string) (string, error) {
	if given != "" {
		if missing := missingIn(given); len(missing) > 0 {
			return "", fmt.Errorf("%s does not contain %s: build the control plane with `make controlplane`, or set its directory with --assets", given, strings.Join(missing, ", "))
		}
		return filepath.Abs(given)
	}
	searched := searchedForAssets()
	for _, dir := range searched {
		if len(missingIn(dir)) == 0 {
			return filepath.Abs(dir)
		}
	}
	return "", fmt.Errorf("no directory with %s was found (searched %s): build the programs with `make controlplane`, or set their directory with --assets",
		strings.Join(names, ", "), strings.Join(searched, ", "))
}

func searchedForAssets() []string {
	var dirs []string
	if dir := os.Getenv("KUBEBUILDER_ASSETS"); dir != "" {
		dirs = append(dirs, dir)
	}
	if executable, err := os.Executable(); err == nil {
		if resolved, err := filepath.EvalSymlinks(executable); err == nil {
			executable = resolved
		}
		dirs = append(dirs, filepath.Dir(executable))
	}
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if filepath.IsAbs(dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

func missingIn(dir string) []string {
	var missing []string
	for _, name := range names {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
			missing = append(missing, name)
		}
	}
	return missing
}
