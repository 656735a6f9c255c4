// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
)

// newFlushQueue returns a queue whose peer accepts at most *takes bytes at a time, and the bytes that the peer has accepted.
func newFlushQueue(limit int, takes *int) (q *queue, got *strings.Builder) {
	q, got = newQueue(limit), &strings.Builder{}
	q.unflushed = &[]*queue{}
	q.attempt = func(data []byte) int {
		n := min(*takes, len(data))
		got.Write(data[:n])
		return n
	}
	return q, got
}

func TestFlush_LeavesRestToWriter(t *testing.T) {
	g := NewWithT(t)
	takes := 3
	q, got := newFlushQueue(40, &takes)
	enqueue(q, "<log>", logging, "")
	enqueue(q, "<needed>", needed, "")
	g.Expect(*q.unflushed).To(HaveExactElements(q), "once")
	q.flush()
	g.Expect(got.String()).To(Equal("<lo"))
	enqueue(q, strings.Repeat("x", 40), needed, "")
	g.Expect(enqueue(q, "<one more>", needed, "")).To(BeFalse(), "a message that is partly written cannot be dropped to make room")
	q.close()
	var rest strings.Builder
	g.Expect(q.write(&rest)).To(Succeed())
	g.Expect(rest.String()).To(Equal("g><needed>" + strings.Repeat("x", 40)))
}

func TestFlush_DoesNotOvertakeWriter(t *testing.T) {
	g := NewWithT(t)
	takes := 100
	q, got := newFlushQueue(0, &takes)
	enqueue(q, "first", needed, "")
	writing := q.take(nil)
	enqueue(q, "second", needed, "")
	q.flush()
	g.Expect(got.String()).To(BeEmpty(), "a new message must not overtake the one that is being written")
	enqueue(q, "third", needed, "")
	next := q.take(nil)
	g.Expect(string(writing) + string(next)).To(Equal("firstsecondthird"))
	q.close()
	q.flush()
	g.Expect(q.take(nil)).To(BeNil())
}
