// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package printable

import (
	"testing"

	. "github.com/onsi/gomega"
)

func TestQuote_EscapesForShell(t *testing.T) {
	g := NewWithT(t)
	g.Expect(Quote("/home/ann/.local/state")).To(Equal("/home/ann/.local/state"))
	g.Expect(Quote("/home/an n's")).To(Equal(`'/home/an n'\''s'`))
}
