// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"errors"
	"io"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

func enqueue(q *queue, text string, kind importance, key string) bool {
	return q.add(kind, key, func(buffer []byte) []byte { return append(buffer, text...) })
}

func TestQueue_DropsLeastImportantMessagesWhenFull(t *testing.T) {
	g := NewWithT(t)
	q := newQueue(41)
	for _, p := range []struct {
		text string
		kind importance
		key  string
	}{
		{"<needed 1>", needed, ""}, {"<old a>", diagnostics, "a"}, {"<b>", diagnostics, "b"}, {"<report>", progressReport, ""}, {"<log>", logging, ""},
		{"<new a>", diagnostics, "a"}, {"<needed 2>", needed, ""},
	} {
		g.Expect(enqueue(q, p.text, p.kind, p.key)).To(BeTrue(), p.text)
	}
	g.Expect(string(q.pending)).To(Equal("<needed 1><old a><b><report><log><new a><needed 2>"), "the queue has room for all messages")
	g.Expect(enqueue(q, "<b again>", diagnostics, "b")).To(BeTrue())
	g.Expect(string(q.pending)).To(Equal("<needed 1><report><log><new a><needed 2><b again>"), "superseded diagnostics are dropped first")
	g.Expect(enqueue(q, "<needed 3>", needed, "")).To(BeTrue())
	g.Expect(string(q.pending)).To(Equal("<needed 1><log><new a><needed 2><b again><needed 3>"))
	g.Expect(enqueue(q, "<needed 4>", needed, "")).To(BeFalse(), "the queue is full, because the peer does not read")

	var out strings.Builder
	q.close()
	g.Expect(q.write(&out)).To(Succeed())
	g.Expect(out.String()).To(Equal("<needed 1><new a><needed 2><b again><needed 3>"))
	g.Expect(enqueue(q, "x", needed, "")).To(BeTrue(), "a closed queue drops all messages")
	g.Expect(q.backlog()).To(BeZero())
}

func TestQueue_AcceptsOneOversizedMessage(t *testing.T) {
	g := NewWithT(t)
	q := newQueue(10)
	g.Expect(enqueue(q, strings.Repeat("x", 100), needed, "")).To(BeTrue())
	g.Expect(enqueue(q, "y", needed, "")).To(BeFalse())
}

func TestQueue_DropsMessagesAfterWriteError(t *testing.T) {
	g := NewWithT(t)
	q := newQueue(0)
	read, write := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- q.write(write) }()
	enqueue(q, "abc", needed, "")
	got := make([]byte, 3)
	_, err := io.ReadFull(read, got)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(string(got)).To(Equal("abc"))
	broken := errors.New("broken")
	_ = read.CloseWithError(broken)
	enqueue(q, "def", needed, "")
	g.Eventually(done).Should(Receive(MatchError(broken)))
	enqueue(q, "ghi", needed, "")
	g.Expect(q.backlog()).To(BeZero())
}
