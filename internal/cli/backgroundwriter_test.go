// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"io"
	"testing"

	. "github.com/onsi/gomega"
)

// While the output accepts no text, writes are refused at once; afterwards, a line stands where text is missing.
func TestBackground_DropsWhatBlockedOutputDoesNotAccept(t *testing.T) {
	g := NewWithT(t)
	reader, writer := io.Pipe() // accepts nothing until it is read
	b := newBackground()
	out := b.to(writer)
	var err error
	for range 2 * maxUnprinted {
		_, err = out.Write([]byte("a\n"))
	}
	g.Expect(err).To(MatchError(errUnprinted))
	var read output
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(&read, reader)
	}()
	g.Eventually(func() error { _, err := out.Write([]byte("b\n")); return err }).Should(Succeed())
	b.close()
	g.Expect(writer.Close()).To(Succeed())
	g.Eventually(ended).Should(BeClosed())
	g.Expect(read.String()).To(HaveSuffix("a\n" + unprinted + "b\n"))
	_, err = out.Write([]byte("c\n"))
	g.Expect(err).To(MatchError(errUnprinted), "after the end")
}
