// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
)

func TestImageArchive_ContainsPrograms(t *testing.T) {
	g := NewWithT(t)
	program := filepath.Join(t.TempDir(), "hello")
	g.Expect(os.WriteFile(program, []byte("static"), 0o600)).To(Succeed())
	data, err := imageArchive("localhost/test:1", []string{program})
	g.Expect(err).NotTo(HaveOccurred())
	files := untar(g, data)
	var manifest []struct {
		Config           string
		RepoTags, Layers []string
	}
	g.Expect(json.Unmarshal(files["manifest.json"], &manifest)).To(Succeed())
	g.Expect(manifest).To(HaveLen(1))
	g.Expect(manifest[0].RepoTags).To(ConsistOf("localhost/test:1"))
	g.Expect(string(files[manifest[0].Config])).To(And(ContainSubstring(`"Entrypoint":["/hello"]`), ContainSubstring(`"User":"65532:65532"`)))
	g.Expect(untar(g, files[manifest[0].Layers[0]])).To(HaveKeyWithValue("hello", []byte("static")))

	_, err = imageArchive("localhost/test:1", []string{program + "-missing"})
	g.Expect(err).To(MatchError(os.ErrNotExist))
}

func untar(g *WithT, data []byte) map[string][]byte {
	files, r := map[string][]byte{}, tar.NewReader(bytes.NewReader(data))
	for {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		g.Expect(err).NotTo(HaveOccurred())
		files[header.Name], err = io.ReadAll(r)
		g.Expect(err).NotTo(HaveOccurred())
	}
}
