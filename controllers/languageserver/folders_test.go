// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package languageserver

import (
	"errors"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/facts"
)

func TestFolders_ChangeWithoutRestart(t *testing.T) {
	s := newFixture(t)
	server := gopls()
	fingerprint := func(current *facts.Incarnation) []string {
		t.Helper()
		var start process.StartSpec
		s.Expect(s.kind.Prepare(t.Context(), server, current, &start)).To(Succeed())
		return start.Fingerprint
	}
	current := s.incarnation(server)
	before := fingerprint(nil)
	started := server.Spec.Workspace.Folders
	s.backend.report = servingReport(1)
	s.backend.report.StartFolders, s.backend.report.Folders, s.backend.report.FoldersChange = started, started, true
	server.Spec.Workspace.Folders = []string{"/src", "/worktree"}
	s.Expect(fingerprint(&current)).To(Equal(before), "the running server changes its folders")
	s.Expect(fingerprint(nil)).NotTo(Equal(before), "the next server starts with the new folders")
	exited := current
	exited.Phase = facts.Exited
	s.Expect(fingerprint(&exited)).NotTo(Equal(before))

	s.observe(server)
	s.Expect(s.backend.folders).To(Equal([]string{"/src", "/worktree"}))
	s.backend.refusal = errors.New("no connection")
	_, retry := s.observe(server)
	s.Expect(retry).To(Equal(unheardRetry))
	s.backend.folders, s.backend.report.Folders = nil, server.Spec.Workspace.Folders
	s.observe(server)
	s.Expect(s.backend.folders).To(BeNil(), "nothing has changed")

	s.backend.report.FoldersChange, s.backend.report.Initialized = false, false
	s.Expect(fingerprint(&current)).To(Equal(before), "the server has not stated yet whether it can change its folders")
	report := s.backend.report
	report.FoldersChange, report.Initialized = true, true
	s.backend.report = nil
	unknown := current
	unknown.Phase = facts.Unknown
	s.Expect(fingerprint(&unknown)).To(Equal(before), "the multiplexer cannot be reached")
	s.backend.report = report
	for name, change := range map[string]func(){
		"another root":                           func() { server.Spec.Workspace.Folders = []string{"/other", "/worktree"} },
		"restarts on request only":               func() { server.Spec.UpdatePolicy = v1alpha1.UpdateOnRestart },
		"a server that keeps its folders":        func() { s.backend.report.FoldersChange = false },
		"another incarnation, and a new manager": func() { s.restartManager(); s.backend.report.Incarnation = 2 },
		"no report, and a new manager":           func() { s.restartManager(); s.backend.report = nil },
	} {
		t.Run(name, func(t *testing.T) {
			report, spec := *s.backend.report, server.Spec.DeepCopy()
			defer func() { s.backend.report, server.Spec = &report, *spec }()
			change()
			s.Expect(fingerprint(&current)).NotTo(Equal(before))
			s.observe(server)
			s.Expect(s.backend.folders).To(BeNil())
		})
	}
}
