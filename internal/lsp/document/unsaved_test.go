// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package document

import (
	"encoding/json"
	"testing"

	. "github.com/onsi/gomega"
)

func TestUnsaved_AreTheSessionsWhoseTextTheServerHas(t *testing.T) {
	g := NewWithT(t)
	const uri = "file:///w/a.go"
	s := NewSet(Limits{})
	s.Replay(nil)
	for session := range Session(2) {
		_, err := s.Open(session, uri, "go", 1, "saved")
		g.Expect(err).NotTo(HaveOccurred())
	}
	g.Expect(s.Unsaved(7)).To(BeEmpty())
	_, err := s.Change(1, uri, 2, []json.RawMessage{json.RawMessage(`{"text":"unsaved"}`)})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(s.Unsaved(7)).To(Equal([]Session{1}))
	g.Expect(s.Unsaved(1)).To(BeEmpty(), "its own text")
	s.View(0, uri)
	g.Expect(s.Unsaved(7)).To(BeEmpty(), "the server has the saved text")
}
