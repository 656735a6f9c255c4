// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"encoding/json"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/lsp"
)

// state requests the state of the server.
func (c *fakeClient) state(id string) (state lsp.State) {
	c.b.t.Helper()
	c.request(id, lsp.MethodState, `{}`)
	answer := c.awaitAnswer(id)
	c.b.Expect(answer.Error).To(BeNil())
	c.b.Expect(json.Unmarshal(answer.Result, &state)).To(Succeed())
	return state
}

func TestState_TellsWhatTheServerIsDoing(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	s := b.serve(nil)
	c := b.join()
	b.Expect(c.state("1")).To(Equal(lsp.State{Incarnation: 1, Serving: true}), "indexing")
	b.Eventually(func() bool {
		b.tick(time.Second)
		return b.report().Indexed
	}).Should(BeTrue())
	b.Expect(c.state("2")).To(Equal(lsp.State{Incarnation: 1, Serving: true, Indexed: true}))

	b.requestFromServer(s, "1", "window/workDoneProgress/create", `{"token":"load"}`)
	b.Expect(c.state("3")).To(Equal(lsp.State{Incarnation: 1, Serving: true, Indexed: true, Working: true}))
	b.tick(5*time.Minute + time.Second)
	b.Expect(c.state("4").Working).To(BeFalse(), "a task that the server forgot does not count forever")

	b.crash(s)
	b.Expect(c.state("5")).To(Equal(lsp.State{Incarnation: 1, Reason: "the server crashed"}), "the answer does not wait for the next server")
	b.Expect(s.received(lsp.MethodState)).To(BeEmpty())
}
