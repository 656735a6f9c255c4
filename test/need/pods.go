// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package need

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
)

// podsTarget builds the programs of a control plane that serves Pods, and runs the tests that need one. make test does not build these programs, because
// compiling them takes longer than the tests.
const podsTarget = "make test-pods"

// Assets returns the directory of the programs that tests start: KUBEBUILDER_ASSETS, or bin of the project. root is the path of the project.
func Assets(root string) string {
	return cmp.Or(os.Getenv("KUBEBUILDER_ASSETS"), filepath.Join(root, "bin"))
}

// WithoutPods returns an error that names the missing program if no control plane that serves Pods can be started.
func WithoutPods(root string) error {
	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kubectl"} {
		if info, err := os.Stat(filepath.Join(Assets(root), name)); err != nil || info.Mode()&0o111 == 0 {
			return fmt.Errorf("%s is not built", name)
		}
	}
	return nil
}

// Pods skips the test if no control plane that serves Pods can be started.
func Pods(t T, root string) {
	t.Helper()
	if WithoutPods(root) != nil {
		Elsewhere(t, podsTarget)
	}
}
