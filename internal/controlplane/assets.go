// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// howToGet is the advice for a user who does not have the program.
const howToGet = "install it with `go install github.com/berth-dev/berth/cmd/berth-apiserver@latest`, or set its directory with --assets"

// findAssets returns the folder that contains berth-apiserver. It is the given folder or, if none is given, the first folder that contains the program among
// KUBEBUILDER_ASSETS, the folder of this executable, and the folders in PATH. findAssets never searches relative to the working directory, where another user may
// have placed a program with this name. The error explains how to get the program.
func findAssets(given string) (string, error) {
	if given != "" {
		if !hasProgram(given) {
			return "", fmt.Errorf("%s does not contain %s: %s", given, program, howToGet)
		}
		return filepath.Abs(given)
	}
	searched := searchedForAssets()
	for _, dir := range searched {
		if hasProgram(dir) {
			return filepath.Abs(dir)
		}
	}
	return "", fmt.Errorf("%s was not found (searched %s): %s", program, strings.Join(searched, ", "), howToGet)
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

func hasProgram(dir string) bool {
	info, err := os.Stat(filepath.Join(dir, program))
	return err == nil && !info.IsDir() && info.Mode()&0o111 != 0
}
