// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// flushed returns a queue whose peer accepts at most *takes bytes at a time, and the bytes that the peer has accepted.
func flushed(limit int, takes *int) (q *queue, got *strings.Builder) {
	q, got = newQueue(limit), &strings.Builder{}
	q.unflushed = &[]*queue{}
	q.attempt = func(data []byte) int {
		n := min(*takes, len(data))
		got.Write(data[:n])
		return n
	}
	return q, got
}

func TestFlushLeavesToTheWriterWhatIsNotTaken(t *testing.T) {
	g := NewWithT(t)
	takes := 3
	q, got := flushed(40, &takes)
	put(q, "<log>", logging, "")
	put(q, "<needed>", needed, "")
	g.Expect(*q.unflushed).To(HaveExactElements(q), "once")
	q.flush()
	g.Expect(got.String()).To(Equal("<lo"))
	put(q, strings.Repeat("x", 40), needed, "")
	g.Expect(put(q, "<one more>", needed, "")).To(BeFalse(), "a message that is partly written cannot be dropped to make room")
	q.close()
	var rest strings.Builder
	g.Expect(q.write(&rest)).To(Succeed())
	g.Expect(rest.String()).To(Equal("g><needed>" + strings.Repeat("x", 40)))
}

func TestFlushTakesNothingFromTheWriter(t *testing.T) {
	g := NewWithT(t)
	takes := 100
	q, got := flushed(0, &takes)
	put(q, "first", needed, "")
	writing, _ := q.take(nil)
	put(q, "second", needed, "")
	q.flush()
	g.Expect(got.String()).To(BeEmpty(), "a new message must not overtake the one that is being written")
	put(q, "third", needed, "")
	next, _ := q.take(nil)
	g.Expect(string(writing) + string(next)).To(Equal("firstsecondthird"))
	q.close()
	q.flush()
	g.Expect(q.take(nil)).To(BeNil())
}

func TestFlushTellsThatAllIsWritten(t *testing.T) {
	g := NewWithT(t)
	takes := 100
	q, got := flushed(0, &takes)
	drained := make(chan struct{})
	q.drained = func() { close(drained) }
	done := make(chan error)
	go func() { done <- q.write(&strings.Builder{}) }()
	put(q, strings.Repeat("x", 60), needed, "")
	q.callWhenDrained()
	q.flush()
	g.Expect(got.Len()).To(Equal(60))
	g.Eventually(drained).Should(BeClosed())
	q.close()
	g.Expect(<-done).To(Succeed())
}
