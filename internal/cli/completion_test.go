// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

func TestCompletion_OffersKindsAndNames(t *testing.T) {
	for _, test := range []struct {
		program string
		args    []string
		want    []string
	}{
		{"berth", []string{"__complete", "status", ""}, []string{"devservers", "devserver/web", "instances", "plans"}},
		{"berth", []string{"__complete", "status", "devserver/"}, []string{"devserver/web"}},
		{"berth", []string{"__complete", "restart", "devserver", ""}, []string{"web"}},
		{"/usr/bin/kubectl_complete-berth", []string{"logs", ""}, []string{"devserver/web"}},
		{"kubectl_complete-berth", []string{"stat"}, []string{"status"}},
	} {
		g := NewWithT(t)
		f := newFixture(web())
		g.Expect(f.app.run(t.Context(), append([]string{test.program}, test.args...))).To(Equal(0), f.err.String())
		var words []string
		for line := range strings.Lines(f.out.String()) {
			word, _, _ := strings.Cut(strings.TrimSpace(line), "\t")
			words = append(words, word)
		}
		for _, want := range test.want {
			g.Expect(words).To(ContainElement(want), "%v", test.args)
		}
		g.Expect(words[len(words)-1]).To(HavePrefix(":"), "the directive for the shell")
	}
}
