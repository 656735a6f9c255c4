// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/berth-dev/berth/internal/lsp/document"
	"github.com/berth-dev/berth/internal/lsp/wire"
)

// flight holds the requests that one incarnation of the server has received and not answered.
type flight struct {
	next    int64
	pending map[int64]*request // by the number that is their ID at the server
	tokens  map[int64]*request // by the number in the progress token that replaced the token of the client
	owed    int                // number of pending requests whose clients are connected
	drained chan struct{}      // if not nil, closed when owed becomes 0
	// viewing is the number of pending requests with request.viewing, and executing that of commands.
	viewing, executing int

	replacements [3]wire.Replacement // memory of substitute
	scratch      [3][32]byte
}

func newFlight() flight {
	return flight{pending: map[int64]*request{}, tokens: map[int64]*request{}}
}

// number returns an unused number for a request or token, within the range that the protocol allows.
func (f *flight) number() int64 {
	for {
		if f.next++; f.next > math.MaxInt32 {
			f.next = 1
		}
		if f.pending[f.next] == nil && f.tokens[f.next] == nil {
			return f.next
		}
	}
}

// begin assigns a number to a request and adds it to the pending ones.
func (f *flight) begin(r *request, now time.Time) {
	r.number, r.place, r.sent = f.number(), inFlight, now
	f.pending[r.number] = r
	if r.viewing {
		f.viewing++
	}
	if r.own != ofClient {
		return
	}
	r.session.inFlight++
	f.owed++
	if r.method == methodExecute {
		f.executing++
	}
}

// end removes a request from the pending ones.
func (f *flight) end(r *request) {
	delete(f.pending, r.number)
	f.dropTokens(r)
	r.place = nowhere
	if r.viewing {
		r.viewing = false
		f.viewing--
	}
	if r.method == methodExecute && (r.own == ofClient || r.own == ofNobody) {
		f.executing--
	}
	if r.session != nil {
		r.session.inFlight--
		f.paid()
	}
}

// disown keeps a request whose client is gone pending, because the server still answers it. The answer is then discarded.
func (f *flight) disown(r *request) {
	f.dropTokens(r)
	r.session.inFlight--
	f.paid()
	r.own, r.session = ofNobody, nil
}

// paid decrements the number of answers that the server owes to connected clients.
func (f *flight) paid() {
	if f.owed--; f.owed == 0 && f.drained != nil {
		close(f.drained)
		f.drained = nil
	}
}

// whenDrained returns a channel that is closed when the server owes no connected client an answer.
func (f *flight) whenDrained() <-chan struct{} {
	drained := make(chan struct{})
	if f.owed == 0 {
		close(drained)
	} else {
		f.drained = drained
	}
	return drained
}

// substitute assigns numbers to the progress tokens of a pending request. It returns what replaces the ID and the tokens of the client in the message to the
// server. The result is valid until the next call.
func (f *flight) substitute(r *request) []wire.Replacement {
	replacements := f.replacements[:1]
	replacements[0] = wire.Replacement{Span: r.spans.id, With: strconv.AppendInt(f.scratch[0][:0], r.number, 10)}
	if len(r.workRaw) > 0 {
		r.workToken = f.number()
		if !r.begun { // otherwise the client would receive the beginning of the progress twice
			f.tokens[r.workToken] = r
		}
		replacements = append(replacements, wire.Replacement{Span: r.spans.work, With: appendToken(f.scratch[1][:0], r.workToken)})
	}
	if len(r.partRaw) > 0 {
		r.partToken = f.number()
		f.tokens[r.partToken] = r
		replacements = append(replacements, wire.Replacement{Span: r.spans.part, With: appendToken(f.scratch[2][:0], r.partToken)})
	}
	return replacements
}

// dropTokens removes the tokens of a request that is no longer in flight.
func (f *flight) dropTokens(r *request) {
	delete(f.tokens, r.workToken) // no token is 0
	delete(f.tokens, r.partToken)
	r.workToken, r.partToken = 0, 0
}

// asks reports whether a request about the document with a key is pending, of any client except the given one.
func (f *flight) asks(key string, except document.Session) bool {
	for _, r := range f.pending {
		if r.own == ofClient && r.session.key != except && len(r.uri) > 0 && document.Key(string(r.uri)) == key {
			return true
		}
	}
	return false
}

// ofMux returns the pending request of the multiplexer with this purpose, or nil.
func (f *flight) ofMux(what requestOwner) *request {
	for _, r := range f.pending {
		if r.own == what {
			return r
		}
	}
	return nil
}

// inOrder returns the pending requests in order of arrival.
func (f *flight) inOrder() []*request {
	return slices.SortedFunc(maps.Values(f.pending), func(one, other *request) int { return cmp.Compare(one.sequence, other.sequence) })
}

// owedSince returns when the oldest pending request was sent, or now if there is none.
func (f *flight) owedSince(now time.Time) time.Time {
	for _, r := range f.pending {
		if r.sent.Before(now) {
			now = r.sent
		}
	}
	return now
}

// causer returns the client whose pending request caused a request of the server. certain is false if no pending request can have caused it, or one of several clients
// that an edit does not concern. If it is true and s is nil, the client is gone, or an edit is that of one of several clients, and must not reach the wrong one.
func (f *flight) causer(method string) (s *session, certain bool) {
	var commands, others []*session
	add := func(list *[]*session, s *session) {
		if !slices.Contains(*list, s) {
			*list = append(*list, s)
		}
	}
	for _, r := range f.pending {
		switch {
		case r.own == ofNobody && r.method == methodExecute:
			return nil, true // the command of a client that is gone
		case r.own != ofClient:
		case r.method == methodExecute:
			add(&commands, r.session)
		case r.method == methodCodeAction || method != methodApplyEdit:
			add(&others, r.session)
		}
	}
	switch {
	case len(commands) == 1:
		return commands[0], true
	case len(commands) == 0 && len(others) == 1:
		return others[0], true
	}
	return nil, method == methodApplyEdit && len(commands)+len(others) > 0
}
