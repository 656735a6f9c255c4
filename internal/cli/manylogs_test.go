// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"strings"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
)

func TestPrefixed_WritesWholeLines(t *testing.T) {
	g := NewWithT(t)
	var out bytes.Buffer
	var lines sync.Mutex
	a, b := &prefixed{out: &out, lines: &lines, prefix: "a: "}, &prefixed{out: &out, lines: &lines, prefix: "b: "}
	for _, piece := range []struct {
		to   *prefixed
		text string
	}{{a, "one\ntw"}, {b, "x\n"}, {a, "o\n"}, {b, "end"}} {
		_, err := piece.to.Write([]byte(piece.text))
		g.Expect(err).NotTo(HaveOccurred())
	}
	a.end()
	b.end()
	g.Expect(out.String()).To(Equal("a: one\nb: x\na: two\nb: end\n"))

	out.Reset()
	_, err := a.Write([]byte(strings.Repeat("x", longestPrefixed)))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(out.Len()).To(Equal(longestPrefixed+4), "a line without an end is written when it is long")
}

func TestLogs_OfSeveralObjects(t *testing.T) {
	g := NewWithT(t)
	f := newFixture(web())
	g.Expect(f.run(t.Context(), "logs", "devservers", "-l", "app=none")).To(Equal(0))
	g.Expect(f.run(t.Context(), "logs", "devserver/web", "--since", "5m")).To(Equal(1))
	g.Expect(f.err.String()).To(ContainSubstring("devserver/web does not run in a Pod"))
	g.Expect(f.run(t.Context(), "logs", "devservers", "-l", "app=shop", "--screen")).To(Equal(2))
}
