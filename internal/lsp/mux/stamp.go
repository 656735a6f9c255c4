// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/berth-dev/berth/internal/lsp/document"
	"github.com/berth-dev/berth/internal/lsp/wire"
)

// A server puts data into its results that it expects to get back: the data of a completion item, or the identifier of semantic tokens. Another incarnation of the
// server does not know the data, or gives it another meaning. The multiplexer therefore marks such data with a stamp before a client receives it. When the client
// sends the data back, the multiplexer removes the stamp. It does not send the server data of another incarnation or of another client.
//
// Nothing is stored for the stamps.

const (
	methodCompletion = "textDocument/completion"
	methodResolve    = "completionItem/resolve"
	methodTokens     = "textDocument/semanticTokens/full"
	methodTokenDelta = "textDocument/semanticTokens/full/delta"
)

var (
	ofItem      = [][]string{{"data"}}
	ofItems     = [][]string{{"*", "data"}}
	ofHierarchy = [][]string{{"item", "data"}}
)

// serverData lists, for the methods whose results contain data of the server, where the data is in the result.
var serverData = map[string][][]string{
	methodCompletion: {{"*", "data"}, {"items", "*", "data"}}, methodResolve: ofItem,
	methodCodeAction: ofItems, "codeAction/resolve": ofItem,
	"textDocument/codeLens": ofItems, "codeLens/resolve": ofItem,
	"textDocument/documentLink": ofItems, "documentLink/resolve": ofItem,
	"textDocument/inlayHint": ofItems, "inlayHint/resolve": ofItem,
	"workspace/symbol": ofItems, "workspaceSymbol/resolve": ofItem,
	"textDocument/prepareCallHierarchy": ofItems, "callHierarchy/incomingCalls": {{"*", "from", "data"}}, "callHierarchy/outgoingCalls": {{"*", "to", "data"}},
	"textDocument/prepareTypeHierarchy": ofItems, "typeHierarchy/supertypes": ofItems, "typeHierarchy/subtypes": ofItems,
	methodTokens: {{"resultId"}}, methodTokenDelta: {{"resultId"}},
	methodPull:             {{"resultId"}, {"relatedDocuments", "*", "resultId"}, {"items", "*", "data"}, {"relatedDocuments", "*", "items", "*", "data"}},
	"workspace/diagnostic": {{"items", "*", "resultId"}, {"items", "*", "items", "*", "data"}},
}

// returnedData lists, for the requests with which clients send data of the server back, where the data is in the parameters.
var returnedData = map[string][][]string{
	methodResolve: ofItem, "codeAction/resolve": ofItem, "codeLens/resolve": ofItem, "documentLink/resolve": ofItem, "inlayHint/resolve": ofItem,
	"workspaceSymbol/resolve": ofItem, "callHierarchy/incomingCalls": ofHierarchy, "callHierarchy/outgoingCalls": ofHierarchy, "typeHierarchy/supertypes": ofHierarchy,
	"typeHierarchy/subtypes": ofHierarchy, methodTokenDelta: {{"previousResultId"}}, methodPull: {{"previousResultId"}},
	"workspace/diagnostic": {{"previousResultIds", "*", "value"}}, methodCodeAction: {{"context", "diagnostics", "*", "data"}},
}

// stamp is the origin of data of the server.
type stamp struct {
	mux         string           // Mux.identity
	incarnation int64            // of the server
	client      document.Session // that received the data; 0: all clients
	sequence    int64            // request.sequence of the request that returned the data; 0: unknown
	index       int              // of the item in the list; -1: none
}

func (s stamp) String() string {
	return fmt.Sprintf("%s.%d.%d.%d.%d", s.mux, s.incarnation, s.client, s.sequence, s.index)
}

func parseStamp(text string) (s stamp, ok bool) {
	var rest string
	if s.mux, rest, ok = strings.Cut(text, "."); !ok {
		return stamp{}, false
	}
	n, err := fmt.Sscanf(rest, "%d.%d.%d.%d", &s.incarnation, &s.client, &s.sequence, &s.index)
	return s, err == nil && n == 4
}

// Data that is an object has the stamp in its member stampKey, and a string has it between stampPrefix and a colon. Other data is in the member wrappedKey of an
// object with a stamp.
const (
	stampKey    = "$berth"
	wrappedKey  = "$berthData"
	stampPrefix = "$berth:"
)

// withStamp appends the replacements that add a stamp to a value at a position in a text.
func withStamp(list []wire.Replacement, text []byte, at wire.Span, s stamp) []wire.Replacement {
	insert := func(at int, text string) {
		list = append(list, wire.Replacement{Span: wire.Span{Start: at, End: at}, With: []byte(text)})
	}
	member := `"` + stampKey + `":"` + s.String() + `"`
	switch value := text[at.Start:at.End]; {
	case string(value) == "null":
	case value[0] == '"':
		insert(at.Start+1, stampPrefix+s.String()+":")
	case value[0] == '{' && string(bytes.TrimSpace(value[1:len(value)-1])) == "":
		insert(at.Start+1, member)
	case value[0] == '{':
		insert(at.Start+1, member+",")
	default:
		insert(at.Start, `{`+member+`,"`+wrappedKey+`":`)
		insert(at.End, "}")
	}
	return list
}

// withoutStamp returns the stamp of a value and the value as the server made it. ok is false if the value has no stamp.
func withoutStamp(value []byte) (s stamp, original json.RawMessage, ok bool) {
	if rest, found := bytes.CutPrefix(value, []byte(`"`+stampPrefix)); found {
		text, rest, _ := bytes.Cut(rest, []byte{':'})
		s, ok = parseStamp(string(text))
		return s, append([]byte{'"'}, rest...), ok
	}
	var object map[string]json.RawMessage
	var text string
	if json.Unmarshal(value, &object) != nil || json.Unmarshal(object[stampKey], &text) != nil {
		return stamp{}, nil, false
	}
	if s, ok = parseStamp(text); !ok {
		return stamp{}, nil, false
	}
	if wrapped, found := object[wrappedKey]; found {
		return s, wrapped, true
	}
	delete(object, stampKey)
	return s, wire.Encode(object), true
}

// stampFor returns the stamp for the result of a request. The result of completionItem/resolve names the completion of the item, if that is known.
func (m *Mux) stampFor(r *request) stamp {
	made := stamp{mux: m.identity, incarnation: m.incarnation, client: r.session.key, sequence: r.sequence, index: -1}
	if r.method == methodResolve {
		made.sequence, made.index = r.origin.sequence, r.origin.index
	}
	return made
}

// stampAll appends the replacements that add stamps to the values at the paths in a text.
func stampAll(list []wire.Replacement, text []byte, s stamp, paths [][]string) []wire.Replacement {
	for _, found := range wire.Find(text, paths...) {
		item := s
		if found.Index >= 0 {
			item.index = found.Index
		}
		list = withStamp(list, text, found.Span, item)
	}
	return list
}

// stampResult returns the result of a request with stamps.
func (m *Mux) stampResult(r *request, result []byte) (stamped []byte, changed bool) {
	paths := serverData[r.method]
	if paths == nil || len(result) == 0 {
		return result, false
	}
	list := stampAll(nil, result, m.stampFor(r), paths)
	if len(list) == 0 {
		return result, false
	}
	return wire.Replaced(result, list...), true
}

// stampPart appends the replacements that add stamps to a partial result.
func (m *Mux) stampPart(list []wire.Replacement, r *request, body []byte) []wire.Replacement {
	paths := make([][]string, 0, len(serverData[r.method]))
	for _, path := range serverData[r.method] {
		paths = append(paths, append([]string{"params", "value"}, path...))
	}
	if len(paths) == 0 {
		return list
	}
	return stampAll(list, body, m.stampFor(r), paths)
}

// stampDiagnostics returns diagnostics whose data has stamps. All clients may send this data back, in the context of textDocument/codeAction.
func (m *Mux) stampDiagnostics(list json.RawMessage) json.RawMessage {
	spans := stampAll(nil, list, stamp{mux: m.identity, incarnation: m.incarnation, index: -1}, ofItems)
	if len(spans) == 0 {
		return list
	}
	return wire.Replaced(list, spans...)
}

// current reports whether the server knows data with this stamp, from an answer to this client.
func (m *Mux) current(s stamp, client document.Session) bool {
	return s.mux == m.identity && s.incarnation == m.incarnation && (s.client == 0 || s.client == client)
}

// unstamp returns the replacements that remove the stamps from a request. ok is false if the request was answered or was replaced with another one, because it
// contains data of another incarnation or of another client.
func (m *Mux) unstamp(r *request) (list []wire.Replacement, ok bool) {
	paths := returnedData[r.method]
	if paths == nil || r.session == nil {
		return nil, true
	}
	prefixed := make([][]string, 0, len(paths))
	for _, path := range paths {
		prefixed = append(prefixed, append([]string{"params"}, path...))
	}
	for _, found := range wire.Find(r.body, prefixed...) {
		value := r.body[found.Start:found.End]
		if string(value) == "null" {
			continue
		}
		s, original, stamped := withoutStamp(value)
		switch {
		case stamped && m.current(s, r.session.key):
			r.origin = s
		case r.method == methodCodeAction && !stamped:
			continue // the diagnostic of another server of the same editor
		case r.method == methodCodeAction:
			original = wire.Null
		case r.method == methodTokenDelta:
			m.replaceRequest(r, methodTokens, wire.Encode(map[string]any{"textDocument": map[string]string{"uri": string(r.uri)}}))
			return nil, true
		default:
			m.fail(r, wire.CodeContentModified, "the request refers to data of an earlier incarnation of the language server, or of another client; request the data again", nil)
			return nil, false
		}
		list = append(list, wire.Replacement{Span: found.Span, With: original})
	}
	if r.method == methodResolve {
		return m.unstampItem(r, list)
	}
	return list, true
}

// replaceRequest turns a request into another one whose answer the client or the multiplexer accepts in its place.
func (m *Mux) replaceRequest(r *request, method string, params json.RawMessage) {
	var e wire.Envelope
	body := wire.RequestBody(r.id, method, params)
	if wire.Scan(body, &e) != nil {
		return // the parts of the body were scanned before
	}
	r.method, r.body, r.uri = method, body, append(r.uri[:0], e.URI...)
	r.spans, r.workRaw, r.partRaw = spans{id: e.IDSpan}, nil, nil
}
