// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package code

import (
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
)

func TestWhere_PrefersCode(t *testing.T) {
	for name, test := range map[string]struct {
		language, text string
		want           position
	}{
		"a comment before":     {"go", "// go is 😀\nvar go = 1\n", position{1, 4}},
		"a comment behind":     {"go", "a // go\ngo\n", position{1, 0}},
		"a block":              {"typescript", "/** go\n * go */ go\n", position{1, 9}},
		"a string":             {"typescript", "a('go', \"\\\"go\", `go\ngo`, go)\n", position{1, 5}},
		"behind wide text":     {"go", "\"😀 go\" + go\n", position{0, 10}},
		"an include":           {"cpp", "#include \"go.h\"\nint go();\n", position{1, 4}},
		"Python":               {"python", "\"\"\"go\n'go\n\"\"\"\n# go\nx = 'go'\ndef go(): pass\n", position{5, 4}},
		"a quote in a comment": {"go", "// it's\ngo\n", position{1, 0}},
		"only a comment":       {"go", "// go\n", position{0, 3}},
		"an open string":       {"go", "\"abc\ngo\n", position{1, 0}},
		"a lifetime":           {"rust", "fn f<'a>(go: &'a str)\n", position{0, 9}},
		"an unknown language":  {"vim", "// go\n", position{0, 3}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(Where{Symbol: "go"}.locate(test.text, test.language)).To(Equal(test.want))
		})
	}
}

func TestDiagnostics_AMissingFileFailsAlone(t *testing.T) {
	g := NewWithT(t)
	dir := t.TempDir()
	good, missing := filepath.Join(dir, "a.go"), filepath.Join(dir, "missing.go")
	write(t, good, "text")
	c := connect(t, &server{}, dir)
	reports, err := c.Diagnostics(t.Context(), []string{missing, good})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(reports).To(HaveLen(2))
	g.Expect(reports[0].File).To(Equal(missing))
	g.Expect(reports[0].Settled).To(BeFalse())
	g.Expect(reports[0].Reason).To(ContainSubstring("does not exist"))
	g.Expect(reports[1].File).To(Equal(good))
	_, err = c.Diagnostics(t.Context(), []string{missing})
	g.Expect(err).To(MatchError(ContainSubstring("does not exist")))
}
