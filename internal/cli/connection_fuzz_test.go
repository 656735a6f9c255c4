// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"path/filepath"
	"testing"
)

// FuzzKubeconfig checks that loadConfig returns an error for a file that is not a kubeconfig, and never panics.
func FuzzKubeconfig(f *testing.F) {
	for _, text := range []string{
		"", "apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{name: a, context: {cluster: a, user: a}}]\n" +
			"clusters: [{name: a, cluster: {server: 'https://127.0.0.1:1'}}]\nusers: [{name: a, user: {token: t}}]\n",
		"{", "apiVersion: v2", "current-context: [1]", "clusters: [{name: a, cluster: {server: '%zz', certificate-authority-data: AA}}]",
	} {
		f.Add([]byte(text))
	}
	path := filepath.Join(f.TempDir(), "kubeconfig")
	f.Fuzz(func(t *testing.T, text []byte) {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		config, _, err := loadConfig(&connectionFlags{kubeconfig: path})
		if (config == nil) == (err == nil) {
			t.Errorf("config %v, error %v", config, err)
		}
	})
}
