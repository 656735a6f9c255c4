// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"

	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/lsp/wire"
)

// returning is a server that answers the methods with the results.
func returning(results map[string]string) func(*fakeServer, message) {
	return func(s *fakeServer, m message) {
		if result, ok := results[m.Method]; ok && len(m.ID) > 0 {
			s.answer(m, result)
		}
	}
}

// handing are requests whose result contains data of the server, and how a client sends the data back.
var handing = map[string]struct {
	list, result, send string
	// params returns the parameters of the second request, for the result of the first one.
	params func(result string) string
}{
	"completion":      {methodCompletion, `[{"label":"a","data":{"id":7}}]`, methodResolve, first},
	"completion list": {methodCompletion, `{"isIncomplete":false,"items":[{"label":"a","data":["x",1]}]}`, methodResolve, func(r string) string { return at(r, "items", "0") }},
	"item defaults": {methodCompletion, `{"items":[],"itemDefaults":{"data":{}}}`, methodResolve, func(r string) string {
		return `{"label":"a","data":` + at(r, "itemDefaults", "data") + `}`
	}},
	"resolved item":    {methodResolve, `{"label":"a","data":7}`, methodResolve, func(r string) string { return r }},
	"code action":      {methodCodeAction, `[{"title":"a","command":"c","data":"text \" with: signs"}]`, "codeAction/resolve", first},
	"code lens":        {"textDocument/codeLens", `[{"data":[1,{"a":2}]}]`, "codeLens/resolve", first},
	"document link":    {"textDocument/documentLink", `[{"data":true}]`, "documentLink/resolve", first},
	"inlay hint":       {"textDocument/inlayHint", `[{"data":{"big":12345678901234567890}}]`, "inlayHint/resolve", first},
	"workspace symbol": {"workspace/symbol", `[{"data":{"a":1}}]`, "workspaceSymbol/resolve", first},
	"call hierarchy":   {"textDocument/prepareCallHierarchy", `[{"data":"a"}]`, "callHierarchy/incomingCalls", func(r string) string { return `{"item":` + first(r) + `}` }},
	"callers":          {"callHierarchy/incomingCalls", `[{"from":{"data":"a"}}]`, "callHierarchy/outgoingCalls", func(r string) string { return `{"item":` + at(r, "0", "from") + `}` }},
	"callees":          {"callHierarchy/outgoingCalls", `[{"to":{"data":"a"}}]`, "callHierarchy/outgoingCalls", func(r string) string { return `{"item":` + at(r, "0", "to") + `}` }},
	"type hierarchy":   {"textDocument/prepareTypeHierarchy", `[{"data":"a"}]`, "typeHierarchy/subtypes", func(r string) string { return `{"item":` + first(r) + `}` }},
	"supertypes":       {"typeHierarchy/supertypes", `[{"data":"a"}]`, "typeHierarchy/supertypes", func(r string) string { return `{"item":` + first(r) + `}` }},
	"pulled":           {methodPull, `{"kind":"full","items":[],"resultId":"r:1"}`, methodPull, func(r string) string { return `{"previousResultId":` + at(r, "resultId") + `}` }},
	"pulled everything": {"workspace/diagnostic", `{"items":[{"resultId":"1"}]}`, "workspace/diagnostic", func(r string) string {
		return `{"previousResultIds":[{"value":` + at(r, "items", "0", "resultId") + `}]}`
	}},
}

func first(list string) string { return at(list, "0") }

// at returns the value at a path in JSON.
func at(text string, path ...string) string {
	value := json.RawMessage(text)
	for _, key := range path {
		var list []json.RawMessage
		if json.Unmarshal(value, &list) == nil {
			value = list[0]
			continue
		}
		value = capability(value, key)
	}
	return string(value)
}

// The server gets back exactly what it has sent, from the client that it was sent to. It gets nothing from another client, and nothing that an earlier incarnation
// has sent.
func TestStamp_DataReturnsToItsOrigin(t *testing.T) {
	for name, c := range handing {
		t.Run(name, func(t *testing.T) {
			b := newFixture(t, lsp.Config{})
			results := map[string]string{c.send: `[]`, c.list: c.result}
			s := b.serve(returning(results))
			a, other := b.join(), b.join()
			a.request("1", c.list, unsent(c.list))
			got := string(a.awaitAnswer("1").Result)
			b.Expect(got).To(ContainSubstring(stampKey))
			b.Expect(got).NotTo(MatchJSON(c.result))

			sent := len(s.received(c.send))
			other.request("2", c.send, c.params(got))
			b.Expect(other.awaitAnswer("2").Error.Code).To(Equal(wire.CodeContentModified))
			b.Expect(s.received(c.send)).To(HaveLen(sent), "the data of another client")

			a.request("3", c.send, reordered(c.params(got)))
			b.Expect(a.awaitAnswer("3").Error).To(BeNil())
			b.Expect(s.received(c.send)).To(HaveLen(sent + 1))
			b.Expect(s.received(c.send)[sent].Params).To(MatchJSON(c.params(c.result)))

			b.stopForRestart(s)
			next := b.serve(returning(results))
			a.request("4", c.send, c.params(got))
			b.Expect(a.awaitAnswer("4").Error.Code).To(Equal(wire.CodeContentModified))
			a.request("5", c.send, c.params(c.result))
			b.Expect(a.awaitAnswer("5").Error.Code).To(Equal(wire.CodeContentModified), "data without a stamp")
			b.Expect(next.received(c.send)).To(BeEmpty(), "data of the previous server")
		})
	}
}

// unsent returns parameters for a first request that contain no data of the server.
func unsent(method string) string {
	if method == methodResolve {
		return `{"label":"a"}`
	}
	if returnedData[method] != nil && strings.Contains(method, "Hierarchy/") {
		return `{"item":{}}`
	}
	return hoverParams("file:///a.go")
}

// reordered returns the same JSON with other spaces and the members in another order, as an editor does that decodes it.
func reordered(text string) string {
	return string(wire.Encode(decode(json.RawMessage(text))))
}

// A request that was held during the restart is checked, too.
func TestStamp_HeldRequestIsRefused(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	results := map[string]string{"textDocument/codeLens": `[{"data":1}]`, "codeLens/resolve": `{}`}
	s := b.serve(returning(results))
	c := b.join()
	c.request("1", "textDocument/codeLens", hoverParams("file:///a.go"))
	lens := first(string(c.awaitAnswer("1").Result))
	b.stopForRestart(s)
	c.request("2", "codeLens/resolve", lens)
	c.sync()
	next := b.serve(returning(results))
	b.Expect(c.awaitAnswer("2").Error.Code).To(Equal(wire.CodeContentModified))
	b.Expect(next.received("codeLens/resolve")).To(BeEmpty())
}

// clangd numbers the results of each incarnation from 1, so the identifier of an earlier incarnation would be that of other tokens.
func TestStamp_TokensOfEarlierServerAreSentCompletely(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	results := map[string]string{methodTokens: `{"resultId":"1","data":[0,1]}`, methodTokenDelta: `{"resultId":"2","edits":[]}`}
	s := b.serve(returning(results))
	c, other := b.join(), b.join()
	document := `{"textDocument":{"uri":"file:///a.go"}`
	c.request("1", methodTokens, document+`}`)
	id := at(string(c.awaitAnswer("1").Result), "resultId")
	c.request("2", methodTokenDelta, document+`,"previousResultId":`+id+`}`)
	b.Expect(c.awaitAnswer("2").Result).To(ContainSubstring(`"edits"`))
	b.Expect(s.received(methodTokenDelta)[0].Params).To(MatchJSON(document + `,"previousResultId":"1"}`))
	other.request("3", methodTokenDelta, document+`,"previousResultId":`+id+`}`)
	b.Expect(other.awaitAnswer("3").Result).To(ContainSubstring(`"data":[0,1]`), "the tokens of another client")

	b.stopForRestart(s)
	next := b.serve(returning(results))
	for i, stale := range []string{id, `"1"`} {
		request := fmt.Sprint(10 + i)
		c.request(request, methodTokenDelta, document+`,"workDoneToken":"w","previousResultId":`+stale+`}`)
		b.Expect(c.awaitAnswer(request).Result).To(ContainSubstring(`"data":[0,1]`))
	}
	b.Expect(next.received(methodTokenDelta)).To(BeEmpty())
}

// A code action is not refused because of the data of a diagnostic, because an editor may send the diagnostics of several servers. The data of other servers is not
// changed. The data of an earlier incarnation is removed.
func TestStamp_DiagnosticsInCodeActions(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	results := map[string]string{methodCodeAction: `[]`}
	published := `{"uri":"file:///a.go","diagnostics":[{"message":"m","data":{"fix":1}}]}`
	s := b.serve(returning(results))
	c := b.join()
	s.send(`{"jsonrpc":"2.0","method":"textDocument/publishDiagnostics","params":` + published + `}`)
	list := at(string(b.await(c.peer, "textDocument/publishDiagnostics", 1).Params), "diagnostics")
	ask := func(s *fakeServer, id string, want types.GomegaMatcher) {
		t.Helper()
		context := strings.TrimSuffix(list, "]") + `,{"message":"of another server","data":{"$berth":"f.1.0.0.-1","x":1}},{"message":"of a third one","data":{"x":1}}]`
		c.request(id, methodCodeAction, `{"context":{"diagnostics":`+context+`}}`)
		b.Expect(c.awaitAnswer(id).Error).To(BeNil())
		b.Expect(at(string(s.received(methodCodeAction)[0].Params), "context", "diagnostics")).To(want)
	}
	others := `{"message":"of another server","data":null},{"message":"of a third one","data":{"x":1}}]`
	ask(s, "1", MatchJSON(`[{"message":"m","data":{"fix":1}},`+others))
	b.stopForRestart(s)
	ask(b.serve(returning(results)), "2", MatchJSON(`[{"message":"m","data":null},`+others))
}

func TestStamp_PartialResults(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	s := b.serve(func(s *fakeServer, m message) {
		if m.Method == "workspace/symbol" {
			s.send(`{"jsonrpc":"2.0","method":"$/progress","params":{"token":` + at(string(m.Params), "partialResultToken") + `,"value":[{"data":5}]}}`)
			s.answer(m, `[]`)
		}
		if m.Method == "workspaceSymbol/resolve" {
			s.answer(m, `{}`)
		}
	})
	c := b.join()
	c.request("1", "workspace/symbol", `{"query":"","partialResultToken":"p"}`)
	c.awaitAnswer("1")
	part := string(c.received("$/progress")[0].Params)
	b.Expect(at(part, "token")).To(Equal(`"p"`))
	c.request("2", "workspaceSymbol/resolve", at(part, "value", "0"))
	b.Expect(c.awaitAnswer("2").Error).To(BeNil())
	b.Expect(s.received("workspaceSymbol/resolve")[0].Params).To(MatchJSON(`{"data":5}`))
}

// cachingServer keeps the items of its last completion only, like typescript-language-server. An item is resolved to the document of the last completion.
func cachingServer(hook func(s *fakeServer, m message) bool) func(*fakeServer, message) {
	last, made := "", 0
	return func(s *fakeServer, m message) {
		if hook != nil && hook(s, m) {
			return
		}
		switch m.Method {
		case methodCompletion:
			last = at(string(m.Params), "textDocument", "uri")
			made++
			s.answer(m, fmt.Sprintf(`{"items":[{"label":"one","data":{"id":0,"made":%d}},{"label":"two","data":{"id":1,"made":%d}}]}`, made, made))
		case methodResolve:
			s.answer(m, `{"label":`+at(string(m.Params), "label")+`,"detail":`+last+`,"data":`+at(string(m.Params), "data")+`}`)
		}
	}
}

// A client accepts an item of its own completion, although another client has requested a completion since.
func TestCompletion_ItemIsResolvedWithTheCompletionOfItsClient(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	s := b.serve(cachingServer(nil))
	one, other := b.join(), b.join()
	one.request("1", methodCompletion, `{"workDoneToken":"w",`+hoverParams("file:///one.ts")[1:])
	item := at(at(string(one.awaitAnswer("1").Result), "items"), "1")
	b.Expect(at(item, "label")).To(Equal(`"one"`)) // at returns the first element
	var list struct{ Items []json.RawMessage }
	b.Expect(json.Unmarshal(one.answers("1")[0].Result, &list)).To(Succeed())
	item = string(list.Items[1])
	resolve := func(id, item string) message {
		t.Helper()
		one.request(id, methodResolve, item)
		got := one.awaitAnswer(id)
		b.Expect(got.Error).To(BeNil())
		b.Expect(at(string(got.Result), "label")).To(Equal(`"two"`))
		b.Expect(at(string(got.Result), "detail")).To(Equal(`"file:///one.ts"`))
		return got
	}
	resolve("2", item)
	b.Expect(s.received(methodCompletion)).To(HaveLen(1), "not repeated without need")

	for i := range 3 { // the data of a resolved item has the same origin
		id := fmt.Sprint(10 * (i + 1))
		other.request(id, methodCompletion, hoverParams("file:///other.ts"))
		other.awaitAnswer(id)
		item = string(resolve(id, item).Result)
	}
	b.Expect(s.received(methodCompletion)).To(HaveLen(7))
	b.Expect(s.received(methodCompletion)[2].Params).To(MatchJSON(hoverParams("file:///one.ts")))
	b.Expect(one.received("$/progress")).To(BeEmpty())
}

// A completion of another client that the server receives between the repeated completion and its answer makes the multiplexer repeat it once more, a bounded number
// of times.
func TestCompletion_RepeatsAreBounded(t *testing.T) {
	for between, succeeds := range map[int]bool{1: true, completionRepeats: false} {
		t.Run(fmt.Sprint(between), func(t *testing.T) {
			b := newFixture(t, lsp.Config{})
			var other *fakeClient
			disturbed := 0
			b.serve(cachingServer(func(_ *fakeServer, m message) bool {
				if m.Method == methodCompletion && disturbed > 0 && at(string(m.Params), "textDocument", "uri") == `"file:///one.ts"` {
					if disturbed++; disturbed <= between+1 {
						other.request(fmt.Sprint(1000+disturbed), methodCompletion, hoverParams("file:///other.ts"))
						other.sync()
					}
				}
				return false
			}))
			one := b.join()
			other = b.join()
			one.request("1", methodCompletion, hoverParams("file:///one.ts"))
			item := at(string(one.awaitAnswer("1").Result), "items", "0")
			other.request("2", methodCompletion, hoverParams("file:///other.ts"))
			other.awaitAnswer("2")
			disturbed = 1
			one.request("3", methodResolve, item)
			got := one.awaitAnswer("3")
			if !succeeds {
				b.Expect(got.Error.Code).To(Equal(wire.CodeContentModified))
				return
			}
			b.Expect(at(string(got.Result), "detail")).To(Equal(`"file:///one.ts"`))
		})
	}
}

func TestSameItem(t *testing.T) {
	g := NewWithT(t)
	list := `{"items":[{"label":"a","data":1},{"label":"b","data":2},{"label":"b","sortText":"9","data":3}],"itemDefaults":{"data":4}}`
	same := func(item string, index int) string {
		return string(sameItem(json.RawMessage(list), json.RawMessage(item), index))
	}
	g.Expect(same(`{"label":"b"}`, 2)).To(Equal("3"), "the same position")
	g.Expect(same(`{"label":"a"}`, 2)).To(Equal("1"), "moved")
	g.Expect(same(`{"label":"b","sortText":"9"}`, 0)).To(BeEmpty(), "several")
	g.Expect(same(`{"label":"c"}`, 0)).To(BeEmpty(), "gone")
	g.Expect(string(sameItem(json.RawMessage(`[{"label":"a","data":1}]`), json.RawMessage(`{"label":"a"}`), -1))).To(Equal("1"))
	g.Expect(string(sameItem(json.RawMessage(`{"items":[{"label":"a"}],"itemDefaults":{"data":4}}`), json.RawMessage(`{"label":"a"}`), 0))).To(Equal("4"))
	g.Expect(sameItem(wire.Null, json.RawMessage(`{"label":"a"}`), 0)).To(BeNil())
}

func TestStamp_PendingTokensAreSentCompletely(t *testing.T) {
	b := newFixture(t, lsp.Config{})
	s := b.serve(returning(map[string]string{methodTokens: `{"resultId":"1","data":[0,1]}`}))
	c := b.join()
	document := `{"textDocument":{"uri":"file:///a.go"}`
	c.request("1", methodTokens, document+`}`)
	id := at(string(c.awaitAnswer("1").Result), "resultId")
	c.request("2", methodTokenDelta, document+`,"previousResultId":`+id+`}`)
	b.await(s.peer, methodTokenDelta, 1)
	b.stopForRestart(s)
	b.serve(returning(map[string]string{methodTokens: `{"resultId":"1","data":[0,2]}`}))
	b.Expect(c.awaitAnswer("2").Result).To(ContainSubstring(`"data":[0,2]`))
}
