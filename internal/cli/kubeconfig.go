// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-dev/berth/internal/statedir"
)

// writeKubeconfig merges data into the kubeconfig file at path and makes the context of data the current one. Other entries of the file are kept.
func writeKubeconfig(path string, data []byte) error {
	ours, err := clientcmd.Load(data)
	if err != nil {
		return fmt.Errorf("write the kubeconfig: %w", err)
	}
	merged, err := clientcmd.LoadFromFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		merged = ours
	case err != nil:
		return fmt.Errorf("add to the kubeconfig %s: %w", path, err)
	default:
		maps.Copy(merged.Clusters, ours.Clusters)
		maps.Copy(merged.AuthInfos, ours.AuthInfos)
		maps.Copy(merged.Contexts, ours.Contexts)
		merged.CurrentContext = ours.CurrentContext
	}
	out, err := clientcmd.Write(*merged)
	if err != nil {
		return fmt.Errorf("write the kubeconfig: %w", err)
	}
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, out) {
		return nil
	}
	return statedir.Write(path, out)
}
