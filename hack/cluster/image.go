// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// image creates an image of static programs in an otherwise empty file system and imports it into the node. The first program is the entry point.
func (c *cluster) image(ctx context.Context, name string, programs []string) error {
	archive, err := imageArchive(name, programs)
	if err != nil {
		return fmt.Errorf("create image %s: %w", name, err)
	}
	cmd := exec.CommandContext(ctx, "ctr", "--address", c.socket(), "--namespace", "k8s.io", "images", "import", "-")
	cmd.Stdin = bytes.NewReader(archive)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("import image %s (is the cluster up?): %w: %s", name, err, out)
	}
	say("imported image %s", name)
	return nil
}

// imageArchive returns an archive in the format of `docker save`: a manifest, a configuration and one layer.
func imageArchive(name string, programs []string) ([]byte, error) {
	layer, err := imageLayer(programs)
	if err != nil {
		return nil, err
	}
	digest := func(data []byte) string {
		sum := sha256.Sum256(data)
		return hex.EncodeToString(sum[:])
	}
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": []string{"/" + filepath.Base(programs[0])}, "User": "65532:65532", "WorkingDir": "/",
			"Env": []string{"PATH=/"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + digest(layer)}},
	})
	if err != nil {
		return nil, err
	}
	configName := digest(config) + ".json"
	manifest, err := json.Marshal([]any{map[string]any{"Config": configName, "RepoTags": []string{name}, "Layers": []string{"layer.tar"}}})
	if err != nil {
		return nil, err
	}
	return archive(func(w *tar.Writer) error {
		return errors.Join(add(w, "layer.tar", 0o644, layer), add(w, configName, 0o644, config), add(w, "manifest.json", 0o644, manifest))
	})
}

func imageLayer(programs []string) ([]byte, error) {
	return archive(func(w *tar.Writer) error {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "tmp/", Mode: 0o1777}); err != nil {
			return err
		}
		for _, path := range programs {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if err := add(w, filepath.Base(path), 0o755, data); err != nil {
				return err
			}
		}
		return nil
	})
}

func archive(fill func(*tar.Writer) error) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	err := errors.Join(fill(w), w.Close())
	return out.Bytes(), err
}

func add(w *tar.Writer, name string, mode int64, data []byte) error {
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(data))}); err != nil {
		return err
	}
	_, err := w.Write(data)
	return err
}
