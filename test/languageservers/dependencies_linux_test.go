// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package languageservers

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/test/lspclient"
)

// dependencies are the servers whose diagnostics of the main file are tested after another program has written a file that the main file uses. complaint is a part
// of the diagnostic that the main file then has.
var dependencies = []struct{ server, called, complaint string }{
	{"gopls", "helper.go", "undefined: helper"},
	{"tsgo", "helper.ts", "has no exported member"},
	{"typescript-language-server", "helper.ts", "has no exported member"},
	{"basedpyright", "helper.py", "is unknown import symbol"},
	{"clangd", "helper.h", "undeclared identifier 'helper'"},
}

// dependencyCount is how often a test writes the file: the value of the environment variable DEPENDENCIES, or 20.
func dependencyCount() int {
	if n, err := strconv.Atoi(os.Getenv("DEPENDENCIES")); err == nil {
		return n
	}
	return 20
}

// TestServers_SeeDependenciesThatChange writes a file, and immediately requests the diagnostics of another file that uses it. No answer that is marked as settled may
// be about the earlier content.
func TestServers_SeeDependenciesThatChange(t *testing.T) {
	for _, of := range dependencies {
		t.Run(of.server, func(t *testing.T) {
			t.Parallel()
			s, folder := servers[of.server], t.TempDir()
			p := &project{WithT: NewWithT(t), server: s, called: of.called, root: folder, folder: folder}
			p.make(folder, s.files[of.called])
			shared := s.replaceable(t, folder)
			c := s.connect(t, shared.Mux, folder, clientKinds["editor"])
			uri := lspclient.URI(folder, s.main)
			p.Expect(c.Open(uri, s.language, 1, s.files[s.main])).To(Succeed())
			p.Eventually(func() bool {
				var report lsp.Report
				shared.Fill(&report)
				return report.Indexed
			}).WithTimeout(patience).Should(BeTrue(), "a server registers its patterns of files while it starts")
			right, wrong, reason := 0, 0, ""
			var took []time.Duration
			for i := range dependencyCount() {
				text, broken := p.renamed(), i%2 == 0
				if !broken {
					text = s.files[of.called]
				}
				p.Expect(os.WriteFile(filepath.Join(folder, of.called), []byte(text), 0o600)).To(Succeed())
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				var d lsp.Diagnosis
				began := time.Now()
				p.Expect(c.Call(ctx, lsp.MethodDiagnostics, map[string]any{"uri": uri, "timeoutMs": (patience / 2).Milliseconds()}, &d)).To(Succeed())
				cancel()
				took = append(took, time.Since(began))
				var found []lspclient.Diagnostic
				p.Expect(json.Unmarshal(d.Diagnostics, &found)).To(Succeed())
				switch correct := strings.Contains(fmt.Sprint(found), of.complaint) == broken; {
				case !d.Settled:
					reason = d.Reason
				case correct:
					right++
				default:
					wrong++
				}
			}
			t.Logf("%d of %d right, %d wrong, p50 %s, p99 %s %s", right, len(took), wrong, percentile(took, 50), percentile(took, 99), reason)
			p.Expect(wrong).To(BeZero(), "answers that are marked as settled")
			p.Expect(right).To(Equal(len(took)), reason)
		})
	}
}
