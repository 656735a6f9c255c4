// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/conformance"
	"github.com/berth-dev/berth/internal/shim"
)

// A program that reads lines gets each byte of counted input once over several attachments, and then the end of its input.
func TestAttach_CountsInput(t *testing.T) {
	f := newFixture(t, shim.Subreaper)
	saved := filepath.Join(t.TempDir(), "saved")
	p := f.process("counts", 1)
	p.Command, p.Terminal = []string{"/bin/sh", "-c", "cat > " + saved}, &runtime.Terminal{Columns: 80, Rows: 24}
	f.Expect(f.Start(f.ctx, p)).To(Succeed())
	f.await("counts", facts.Running)

	var text strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&text, "line %d\n", i)
	}
	all, sent := text.String(), 0
	for resume, last := false, false; !last; resume = true {
		ctx, cancel := context.WithCancel(f.ctx)
		in, keys := io.Pipe()
		receipts, ended := make(chan facts.Receipt, 8), make(chan error, 1)
		input := &runtime.CountedInput{Reader: in, Stream: "name", Resume: resume, Received: func(receipt facts.Receipt) { receipts <- receipt }}
		go func() { ended <- f.Attach(ctx, "counts", input, io.Discard, nil) }()
		var receipt facts.Receipt
		f.Eventually(receipts).WithTimeout(conformance.Timeout).Should(Receive(&receipt))
		f.Expect(receipt.Total).To(BeNumerically(">=", sent))
		sent = int(receipt.Total)
		piece := all[sent:min(sent+9001, len(all))]
		_, err := io.WriteString(keys, piece)
		f.Expect(err).NotTo(HaveOccurred())
		if last = sent+len(piece) == len(all); !last {
			cancel() // perhaps before the piece is typed
			f.Expect(keys.Close()).To(Succeed())
			f.Eventually(ended).WithTimeout(conformance.Timeout).Should(Receive(BeNil()))
			continue
		}
		f.Expect(keys.CloseWithError(runtime.ErrInputEnd)).To(Succeed())
		f.Eventually(ended).WithTimeout(conformance.Timeout).Should(Receive(BeNil()), "cat ends at the end of its input")
		cancel()
	}
	f.await("counts", facts.Exited)
	f.Expect(os.ReadFile(saved)).To(BeEquivalentTo(all))
}

// Another process does not get the rest of the input.
func TestAttach_RefusesInputThatTheProcessDoesNotKnow(t *testing.T) {
	f := newFixture(t, shim.Subreaper)
	p := f.process("other", 1)
	p.Command, p.Terminal = []string{"/bin/cat"}, &runtime.Terminal{Columns: 80, Rows: 24}
	f.Expect(f.Start(f.ctx, p)).To(Succeed())
	f.await("other", facts.Running)
	input := &runtime.CountedInput{Reader: strings.NewReader("yes\n"), Stream: "name", Resume: true, Received: func(facts.Receipt) { t.Error("received") }}
	f.Expect(f.Attach(f.ctx, "other", input, io.Discard, nil)).To(MatchError(runtime.ErrUnknownInput))
}
