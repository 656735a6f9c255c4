// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"bytes"
	"testing"

	. "github.com/onsi/gomega"
)

func TestFind_RunsTheCommandThatPrintsTheSocket(t *testing.T) {
	g := NewWithT(t)
	var stderr bytes.Buffer
	said := &unrepeated{to: &stderr, before: map[string]bool{}}
	find := func(script string) (string, error) { return find(t.Context(), []string{"sh", "-c", script}, said) }
	g.Expect(find("echo /run/lsp.sock")).To(Equal("/run/lsp.sock"))
	_, err := find("echo gone >&2; exit 3")
	g.Expect(err).To(MatchError(ErrGone))
	for range 3 {
		_, err = find("echo no API server >&2; exit 1")
		g.Expect(err).To(MatchError(ContainSubstring("find the socket of the language server: exit status 1")))
		g.Expect(err).NotTo(MatchError(ErrGone))
	}
	g.Expect(stderr.String()).To(Equal("gone\nno API server\n"), "a message is not repeated")
}
