// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"context"
	"io"
	"sync/atomic"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
)

// The runtime of the fixture runs incarnation 1 of each object.
func TestServer_RefusesWhatWasNotSeen(t *testing.T) {
	for name, test := range map[string]struct {
		seen    Seen
		arrange func(*fixture, Gomega)
		says    string
	}{
		"nothing is named":              {seen: Seen{}},
		"the object and incarnation":    {seen: Seen{UID: "uid-shell", Incarnation: 1}},
		"another object":                {seen: Seen{UID: "uid-old"}, says: "was deleted and recreated in the meantime"},
		"an older incarnation":          {seen: Seen{Incarnation: 2}, says: "was restarted: incarnation 1 runs, not 2"},
		"an incarnation that has ended": {seen: Seen{Incarnation: 1}, arrange: func(f *fixture, _ Gomega) { f.stub.phase = facts.Exited }, says: "incarnation 1 of instances default/shell has ended"},
		"a negative incarnation":        {seen: Seen{Incarnation: -1}, says: `invalid incarnation "-1"`},
		// A request without an incarnation would wait until the Instance has started again.
		"an incarnation that falls asleep": {seen: Seen{Incarnation: 1}, arrange: func(f *fixture, g Gomega) { g.Expect(f.book.Rest("uid-shell")).To(BeTrue()) }, says: "because it was idle"},
	} {
		t.Run(name, func(t *testing.T) {
			f, g := newFixture(t), NewWithT(t)
			f.setReady(t.Context(), g, v1alpha1.ReasonRunning, true)
			if test.arrange != nil {
				test.arrange(f, g)
			}
			shell := Object{Namespace: "default", Resource: "instances", Name: "shell"}
			var attached atomic.Bool
			f.stub.attach = func(context.Context, io.Reader, io.Writer) error {
				attached.Store(true)
				return nil
			}
			conn, err := f.client(t, good).Seeing(test.seen).Attach(t.Context(), shell, nil)
			if test.says == "" {
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(conn.Receive(io.Discard, nil)).To(Succeed())
				g.Expect(conn.Close()).To(Succeed())
			} else {
				g.Expect(err).To(MatchError(ContainSubstring(test.says)))
			}
			g.Expect(attached.Load()).To(Equal(test.says == ""))
		})
	}
}

// Requests that type into one terminal wait for each other, so the process can be restarted while a request waits.
func TestType_RefusesIncarnationThatEndsWhileItWaits(t *testing.T) {
	f, g := newFixture(t), NewWithT(t)
	f.setReady(t.Context(), g, v1alpha1.ReasonRunning, true)
	f.server.typing.LockKey("uid-shell")
	typed := make(chan error, 1)
	caller, shell := f.client(t, good).Seeing(Seen{Incarnation: 1}), Object{Namespace: "default", Resource: "instances", Name: "shell"}
	go func() { typed <- caller.Type(t.Context(), shell, runtime.Keystrokes{Text: "yes"}) }()
	g.Eventually(func() bool {
		_, used := f.book.Last("uid-shell")
		return used
	}, timeout).Should(BeTrue(), "the request was admitted")
	f.stub.restarts.Store(1)
	g.Expect(f.server.typing.UnlockKey("uid-shell")).To(Succeed())
	g.Eventually(typed, timeout).Should(Receive(MatchError(ContainSubstring("was restarted: incarnation 2 runs, not 1"))))
	g.Expect(f.stub.typed).To(BeEmpty())
}
