// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"bytes"
	"slices"
	"strconv"
	"time"

	"github.com/berth-dev/berth/internal/lsp/wire"
)

// class determines what happens to a request whose server is lost.
type class uint8

const (
	// unknown: the request may have had an effect, so it is not sent again.
	unknown class = iota
	// read: the request changes nothing and may be sent again.
	read
	// bound: the request refers to data of the lost server, which another server does not know.
	bound
	// effect: the request changes something, and the server may request its client to apply an edit.
	effect
)

const (
	methodExecute    = "workspace/executeCommand"
	methodCodeAction = "textDocument/codeAction"
)

var classes = map[string]class{
	"textDocument/hover": read, "textDocument/definition": read, "textDocument/declaration": read, "textDocument/typeDefinition": read,
	"textDocument/implementation": read, "textDocument/references": read, "textDocument/completion": read,
	"textDocument/signatureHelp": read, "textDocument/documentHighlight": read, "textDocument/documentSymbol": read,
	methodCodeAction: read, "textDocument/codeLens": read, "textDocument/documentLink": read, "textDocument/documentColor": read,
	"textDocument/colorPresentation": read, "textDocument/formatting": read, "textDocument/rangeFormatting": read,
	"textDocument/rangesFormatting": read, "textDocument/onTypeFormatting": read, "textDocument/rename": read,
	"textDocument/prepareRename": read, "textDocument/foldingRange": read, "textDocument/selectionRange": read,
	"textDocument/prepareCallHierarchy": read, "textDocument/prepareTypeHierarchy": read, "textDocument/linkedEditingRange": read,
	methodTokenDelta: read, // the next server is sent methodTokens; see unstamp
	methodTokens:     read, "textDocument/semanticTokens/range": read, "textDocument/inlayHint": read,
	"textDocument/inlineValue": read, "textDocument/inlineCompletion": read, "textDocument/moniker": read,
	"textDocument/diagnostic": read, "workspace/diagnostic": read, "workspace/symbol": read,

	"completionItem/resolve": bound, "codeAction/resolve": bound, "codeLens/resolve": bound, "documentLink/resolve": bound,
	"inlayHint/resolve": bound, "workspaceSymbol/resolve": bound, "callHierarchy/incomingCalls": bound, "callHierarchy/outgoingCalls": bound, "typeHierarchy/supertypes": bound,
	"typeHierarchy/subtypes": bound,

	methodExecute: effect, "workspace/willCreateFiles": effect, "workspace/willRenameFiles": effect, "workspace/willDeleteFiles": effect,
	"textDocument/willSaveWaitUntil": effect,
}

// requestOwner distinguishes the requests of clients from the requests of the multiplexer itself, and the latter by their purpose.
type requestOwner uint8

const (
	ofClient requestOwner = iota
	ownInitialize
	ownPing
	ownCanary
	ownShutdown
	ownPull
	// ofNobody: the client has disconnected, and the answer is discarded.
	ofNobody
)

// place is the list that a request is in, or nowhere.
type place uint8

const (
	nowhere place = iota
	waits
	inFlight
)

// request is one unanswered request, or a waiting notification.
type request struct {
	own     requestOwner
	place   place
	class   class
	session *session
	// notification: it has no ID, and is never in flight.
	notification bool
	// sequence is the order of arrival over all clients.
	sequence int64
	id       []byte // raw, as the client sent it
	number   int64  // ID of the request at the current server
	method   string
	uri      []byte
	body     []byte
	spans    spans
	inquiry  *inquiry // not nil: this request is sent in place of a request for diagnostics
	// origin is the stamp of the server's data in the request. resolving is not nil while the completion of an item is repeated.
	origin    stamp
	resolving *resolution

	arrived, since, sent time.Time
	// held: the request waits, or waited, for a server that accepts requests.
	held bool
	// cancelled: the client canceled it. withdrawn: the multiplexer canceled it to stop the server.
	cancelled, withdrawn bool
	// late is when the multiplexer canceled the request because it had timed out.
	late time.Time
	// viewing: the answer depends on the texts that the server has been given for this client, so the server must keep them until it answers.
	viewing bool
	// crashes is the number of server crashes at which the request was in flight, and kills the number of servers that another program killed meanwhile.
	crashes, kills int
	// streamed: parts of the answer were already sent to the client. begun: the beginning of its progress was already sent to the client.
	streamed, begun      bool
	workToken, partToken int64
	workRaw, partRaw     []byte
}

type spans struct{ id, work, part wire.Span }

// requestPool creates requests in the memory of earlier ones, because most messages are requests.
type requestPool struct {
	sequence int64
	free     []*request
	names    map[string]string // method names
}

// newRequest copies the required parts of a message, into the memory of earlier requests if possible.
func (m *Mux) newRequest(s *session, body []byte, e *wire.Envelope) *request {
	r := m.requests.blank()
	m.requests.sequence++
	r.session, r.sequence, r.arrived = s, m.requests.sequence, m.now()
	r.notification = e.Kind == wire.Notification
	r.method = m.requests.intern(e.Method)
	r.id, r.uri, r.body = append(r.id, e.ID...), append(r.uri, e.URI...), append(r.body, body...)
	r.workRaw, r.partRaw = append(r.workRaw, e.WorkDoneToken...), append(r.partRaw, e.PartialResultToken...)
	r.spans = spans{id: e.IDSpan, work: e.WorkDoneSpan, part: e.PartialSpan}
	r.class = classOf(r, m.config.Replay)
	return r
}

// forget releases a request that was answered or will not be answered. The caller has already removed the request from its list.
func (m *Mux) forget(r *request) {
	if r.inquiry != nil {
		m.dropInquiry(r)
	}
	if s := r.session; s != nil && !r.notification {
		if i := slices.Index(s.open, r); i >= 0 {
			s.open = slices.Delete(s.open, i, i+1)
		}
	}
	m.requests.release(r)
}

// blank returns an empty request, whose slices may have capacity.
func (p *requestPool) blank() *request {
	n := len(p.free)
	if n == 0 {
		return &request{}
	}
	r := p.free[n-1]
	p.free = p.free[:n-1]
	return r
}

// release keeps the memory of a request.
func (p *requestPool) release(r *request) {
	if len(p.free) >= 64 {
		return
	}
	id, uri, body, work, part := r.id[:0], r.uri[:0], r.body[:0], r.workRaw[:0], r.partRaw[:0]
	if cap(body) > keepBytes/4 {
		body = nil
	}
	*r = request{id: id, uri: uri, body: body, workRaw: work, partRaw: part}
	p.free = append(p.free, r)
}

// maxMethods is the maximum number of cached method names, because clients can use any names.
const maxMethods = 512

func (p *requestPool) intern(name []byte) string {
	if known, ok := p.names[string(name)]; ok {
		return known
	}
	text := string(name)
	if len(p.names) < maxMethods && len(text) < 128 {
		p.names[text] = text
	}
	return text
}

// classOf returns the class of a request. replay are the methods that the spec declares to change nothing.
func classOf(r *request, replay []string) class {
	kind, ok := classes[r.method]
	if !ok && slices.Contains(replay, r.method) {
		return read
	}
	switch r.method {
	case "textDocument/diagnostic":
		if bytes.Contains(r.body, []byte(`"previousResultId"`)) {
			return bound
		}
	case "workspace/diagnostic":
		if bytes.Contains(r.body, []byte(`"value"`)) {
			return bound
		}
	}
	return kind
}

// detail is the data of an error that the multiplexer creates.
type detail struct {
	Reason       string `json:"reason"`
	Incarnation  int64  `json:"incarnation"`
	Retriable    bool   `json:"retriable"`
	RetryAfterMs int64  `json:"retryAfterMs,omitempty"`
	// Outcome is "unknown" for a request that may have taken effect.
	Outcome string `json:"outcome,omitempty"`
}

func frame(body []byte) []byte { return wire.AppendFrame(nil, body) }

// tokenPrefix is the beginning of the tokens that replace the progress tokens of clients, because two clients may use the same token.
const tokenPrefix = `"berth/`

func appendToken(dst []byte, number int64) []byte {
	dst = append(dst, tokenPrefix...)
	dst = strconv.AppendInt(dst, number, 10)
	return append(dst, '"')
}

// tokenNumber returns the number in a token made by appendToken.
func tokenNumber(token []byte) (int64, bool) {
	rest, ok := bytes.CutPrefix(token, []byte(tokenPrefix))
	if !ok {
		return 0, false
	}
	return numberOf(bytes.TrimSuffix(rest, []byte{'"'}))
}

// numberOf parses an ID of the multiplexer without allocation.
func numberOf(text []byte) (int64, bool) {
	n, err := strconv.ParseInt(string(text), 10, 64)
	return n, err == nil
}
