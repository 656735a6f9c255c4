// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package document

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestKey_IsEqualForAllSpellingsOfURI(t *testing.T) {
	g := NewWithT(t)
	for _, spellings := range [][]string{
		{"file:///a%20b/c.go", "file:///a b/c.go", "file:///a%20b/c%2Ego"},
		{"untitled:Untitled-1", "untitled%3AUntitled-1"},
		{"vscode-notebook-cell:/n.ipynb#W0sZmlsZQ%3D%3D", "vscode-notebook-cell:/n.ipynb#W0sZmlsZQ=="},
	} {
		for _, uri := range spellings {
			g.Expect(Key(uri)).To(Equal(Key(spellings[0])))
		}
	}
	g.Expect(Key("file:///100%")).To(Equal("file:///100%"), "not an escape")
}
