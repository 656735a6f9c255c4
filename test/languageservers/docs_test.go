// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package languageservers

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// TestServers_AreDocumented tests that each server has a sample with its command, options and settings, and a row in the documentation.
func TestServers_AreDocumented(t *testing.T) {
	g := NewWithT(t)
	document, err := os.ReadFile("../../docs/language-servers.md")
	g.Expect(err).NotTo(HaveOccurred())
	samples, err := filepath.Glob("../../samples/language-servers/*.yaml")
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(samples).To(HaveLen(len(servers)))
	g.Expect(strings.Count(string(document), "\n| [")).To(Equal(len(servers)))
	for name, s := range servers {
		text, err := os.ReadFile(filepath.Join("../../samples/language-servers", name+".yaml"))
		g.Expect(err).NotTo(HaveOccurred())
		var sample v1alpha1.LanguageServer
		g.Expect(yaml.UnmarshalStrict(text, &sample)).To(Succeed(), name)
		g.Expect(sample.Name).To(Equal(name))
		g.Expect(sample.Spec.Language).To(Equal(s.language), name)
		g.Expect(sample.Spec.Process.Command).To(Equal(s.command), name)
		if s.options != nil {
			g.Expect(sample.Spec.InitializationOptions.Raw).To(MatchJSON(asJSON(s.options)), name)
		}
		if s.settings != nil {
			g.Expect(sample.Spec.Settings.Raw).To(MatchJSON(asJSON(s.settings)), name)
		}
		g.Expect(string(document)).To(ContainSubstring("| ["+name+"](../samples/language-servers/"+name+".yaml) | `"+s.language+"` | "), name)
	}
}

func asJSON(value any) string {
	text, _ := json.Marshal(value)
	return string(text)
}
