// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package languageservers

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/test/lspclient"
)

// notSettled are the servers that do not state for which text their diagnostics are, and have no command whose answer shows it. Answers to inquiries are then marked
// as not settled.
var notSettled = []string{
	"dockerfile-language-server", "intelephense", "svelte-language-server", "vscode-css-language-server", "vscode-json-language-server", "yaml-language-server",
}

// TestServers_AnswerInquiries makes edits, and after each one immediately requests the diagnostics of the text. An answer that is marked as settled must not be for
// another text.
func TestServers_AnswerInquiries(t *testing.T) {
	const edits = 6
	for _, name := range slices.Sorted(maps.Keys(servers)) {
		s := servers[name]
		if s.complaint == "" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			folder := s.folder(t)
			c := s.open(t, s.shared(t, folder)(clientKinds["editor"]), folder)
			right := s.files[s.main]
			wrong := strings.Replace(right, s.from, s.mistake, 1)
			var took []time.Duration
			settled, reason := 0, ""
			for i := range edits {
				c.edit([]string{wrong, right}[i%2])
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				var d lsp.Diagnosis
				began := time.Now()
				g.Expect(c.Call(ctx, lsp.MethodDiagnostics, map[string]any{"uri": c.uri}, &d)).To(Succeed())
				cancel()
				took = append(took, time.Since(began))
				g.Expect(d.Version).To(BeEquivalentTo(c.version))
				if !d.Settled {
					reason = d.Reason
					continue
				}
				settled++
				var found []lspclient.Diagnostic
				g.Expect(json.Unmarshal(d.Diagnostics, &found)).To(Succeed())
				g.Expect(strings.Contains(fmt.Sprint(found), s.complaint)).To(Equal(i%2 == 0), "edit %d: %v", i, found)
			}
			t.Logf("%d of %d settled, p50 %s %s", settled, edits, percentile(took, 50), reason)
			if slices.Contains(notSettled, name) {
				g.Expect(reason).To(ContainSubstring("does not state for which content"))
				g.Expect(settled).To(BeZero())
				return
			}
			g.Expect(settled).To(Equal(edits), reason)
		})
	}
}
