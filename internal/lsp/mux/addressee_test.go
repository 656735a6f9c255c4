// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"fmt"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/lsp/wire"
)

const applyEditParams = `{"edit":{"changes":{}}}`

// asking lets the server send a request, and returns the answer after the client has answered it.
func (b *fixture) asking(s *fakeServer, c *fakeClient, method, params string) message {
	b.t.Helper()
	before := len(c.received(method))
	b.next++
	id := fmt.Sprintf(`"ask%d"`, b.next)
	s.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q,"params":%s}`, id, method, params))
	asked := b.await(c.peer, method, before+1)
	c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"of":"the client"}}`, asked.ID))
	b.Eventually(func() []message { return s.answers(id) }).Should(HaveLen(1))
	return s.answers(id)[0]
}

// Requests that the server sends outside a request of a client go to the only client.
func TestServerRequests_GoToTheOnlyClient(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	s := b.serve(nil)
	c := b.join()
	for _, method := range []string{methodApplyEdit, methodShowMsg, methodShowDoc, "vendor/ask"} {
		b.Expect(string(b.asking(s, c, method, applyEditParams).Result)).To(Equal(`{"of":"the client"}`), method)
	}
}

// They go to the client that has sent the last change or command. If that is unknown, a message is shown to all clients.
func TestServerRequests_GoToTheClientThatHasCausedThem(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	s := b.serve(func(s *fakeServer, m message) {
		if m.Method == methodExecute {
			s.answer(m, "null")
		}
	})
	one, two := b.join(), b.join()
	b.Expect(string(b.requestFromServer(s, `"a"`, methodShowMsg, `{"type":2,"message":"Import?","actions":[{"title":"Yes"}]}`).Result)).To(Equal("null"))
	for _, c := range []*fakeClient{one, two} {
		b.Expect(b.await(c.peer, "window/showMessage", 1).Params).To(MatchJSON(`{"type":2,"message":"Import?"}`))
	}
	b.Expect(string(b.requestFromServer(s, `"b"`, methodApplyEdit, applyEditParams).Result)).To(ContainSubstring(`"applied":false`))
	b.Expect(b.requestFromServer(s, `"c"`, "vendor/ask", "{}").Error.Code).To(Equal(wire.CodeMethodNotFound))

	two.openDocument("file:///a.go", "text")
	two.sync()
	for _, method := range []string{methodApplyEdit, methodShowMsg, methodShowDoc, "vendor/ask"} {
		b.asking(s, two, method, applyEditParams)
	}
	one.request("1", methodExecute, `{"command":"c"}`)
	one.awaitAnswer("1")
	two.changeDocument("file:///a.go", 8, "typed")
	two.sync()
	b.asking(s, one, methodApplyEdit, applyEditParams) // the command has ended a moment ago
	b.asking(s, two, methodShowMsg, `{}`)
	b.tick(commandEcho)
	b.asking(s, two, methodApplyEdit, applyEditParams)

	// The edit of a client that is gone reaches no other client.
	_ = two.conn.Close()
	b.Eventually(func() int { return b.report().Clients }).Should(Equal(1))
	b.Expect(string(b.requestFromServer(s, `"d"`, methodApplyEdit, applyEditParams).Result)).To(ContainSubstring(`"applied":false`))
	b.asking(s, one, methodShowMsg, `{}`)
}
