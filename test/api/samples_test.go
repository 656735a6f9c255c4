// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// TestSamples_AreAccepted checks that the API server accepts every sample.
func TestSamples_AreAccepted(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("..", "..", "config", "samples", "*", "*.yaml"))
	g := NewWithT(t)
	g.Expect(err).NotTo(HaveOccurred())
	languageServers, err := filepath.Glob(filepath.Join("..", "..", "samples", "language-servers", "*.yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(languageServers).NotTo(BeEmpty())
	g.Expect(len(files)).To(BeNumerically(">=", 3))
	files = append(files, languageServers...)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			g := NewWithT(t)
			objects := documents(t, file)
			g.Expect(objects).NotTo(BeEmpty())
			for _, o := range objects {
				err := k8s.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(o),
					client.DryRunAll, client.FieldOwner("samples"))
				g.Expect(err).NotTo(HaveOccurred())
			}
		})
	}
}

// documents reads the objects of a file of YAML documents.
func documents(t *testing.T, file string) []*unstructured.Unstructured {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	var objects []*unstructured.Unstructured
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		o := &unstructured.Unstructured{}
		if err := yaml.UnmarshalStrict(document, &o.Object); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if len(o.Object) > 0 {
			objects = append(objects, o)
		}
	}
}
