// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"bytes"
	"encoding/json"
	"slices"
	"time"

	"github.com/berth-dev/berth/internal/lsp/wire"
)

// Some servers, such as typescript-language-server, keep only the items of their last completion, and resolve the item of an earlier one as the item of the last
// one with the same number. A client alone sees this rarely, because its last completion is the last one. If another client has requested a completion since, the
// multiplexer therefore sends the server the client's completion again before it sends completionItem/resolve.

const (
	// keptCompletions is how many completions of each client can be repeated, and keptCompletionBytes the maximum size of the parameters of each of them.
	keptCompletions, keptCompletionBytes = 4, 64 << 10
	// completionRepeats is how often a completion is repeated for one item, if other clients request completions meanwhile.
	completionRepeats = 3
)

// completion is a completion that a client has requested.
type completion struct {
	sequence int64 // of the request
	params   json.RawMessage
}

// resolution is a request completionItem/resolve while the completion of its item is repeated.
type resolution struct {
	body    []byte // of the request
	repeats int
	data    json.RawMessage // of the item in the repeated completion; nil: not known yet
}

// noteCompletion records that a completion is sent to the server.
func (m *Mux) noteCompletion(r *request) {
	b, s := m.server, r.session
	b.completed, b.completedFor = r.sequence, s.key
	if r.resolving != nil {
		b.completed = r.origin.sequence
		return
	}
	if slices.ContainsFunc(s.completions, func(c completion) bool { return c.sequence == r.sequence }) {
		return // sent again after a crash
	}
	var params map[string]json.RawMessage
	for _, found := range wire.Find(r.body, []string{"params"}) {
		if found.End-found.Start <= keptCompletionBytes {
			_ = json.Unmarshal(r.body[found.Start:found.End], &params)
		}
	}
	delete(params, "workDoneToken")
	delete(params, "partialResultToken")
	s.completions = append(s.completions, completion{r.sequence, wire.Encode(params)})
	if len(s.completions) > keptCompletions {
		s.completions = slices.Delete(s.completions, 0, 1)
	}
}

// unstampItem completes unstamp for completionItem/resolve. list are the replacements that remove the stamp. If the server has forgotten the item, the request is
// replaced with its completion.
func (m *Mux) unstampItem(r *request, list []wire.Replacement) (_ []wire.Replacement, ok bool) {
	b := m.server
	switch {
	case len(list) == 0 || r.origin.sequence == 0: // the item has no data, or none of a completion
		return list, true
	case b.completedFor == r.session.key && (r.resolving == nil || b.completed == r.origin.sequence):
		if r.resolving != nil {
			list[0].With = r.resolving.data
			r.resolving = nil
		}
		return list, true
	}
	i := slices.IndexFunc(r.session.completions, func(c completion) bool { return c.sequence == r.origin.sequence })
	if i < 0 || r.resolving != nil && r.resolving.repeats >= completionRepeats {
		m.fail(r, wire.CodeContentModified, "other clients have requested completions since, and the language server has forgotten this item; request the completion again", nil)
		return nil, false
	}
	if r.resolving == nil {
		r.resolving = &resolution{body: bytes.Clone(r.body)}
	}
	r.resolving.repeats++
	m.replaceRequest(r, methodCompletion, r.session.completions[i].params)
	return nil, true
}

// repeated handles the answer to a completion that was repeated for an item. It sends the request for the item again, with the data that the item now has.
func (m *Mux) repeated(r *request, e *wire.Envelope) {
	item := r.resolving
	body := item.body
	var p struct {
		Params json.RawMessage `json:"params"`
	}
	_ = json.Unmarshal(body, &p) // the body was scanned before
	item.data = sameItem(e.Result, p.Params, r.origin.index)
	switch {
	case r.cancelled:
		m.fail(r, wire.CodeRequestCancelled, "canceled", nil)
	case e.IsError || item.data == nil || !m.serves():
		m.fail(r, wire.CodeContentModified, "the language server does not offer this item any more; request the completion again", nil)
	default:
		m.replaceRequest(r, methodResolve, p.Params)
		r.sent = time.Time{} // this request was not sent before
		m.dispatch(r)
	}
}

// completionItem is what identifies an item in repeated completions.
type completionItem struct {
	Label    string          `json:"label"`
	SortText string          `json:"sortText"`
	Data     json.RawMessage `json:"data"`
}

func (i *completionItem) isSame(other *completionItem) bool {
	return i.Label == other.Label && (i.SortText == other.SortText || i.SortText == "" || other.SortText == "")
}

// sameItem returns the data of an item in another result of the same completion, or nil if the result does not have the item. index is the position of the item in
// the first result, or -1.
func sameItem(result, item json.RawMessage, index int) json.RawMessage {
	var list struct {
		Items    []completionItem `json:"items"`
		Defaults struct {
			Data json.RawMessage `json:"data"`
		} `json:"itemDefaults"`
	}
	if json.Unmarshal(result, &list.Items) != nil && json.Unmarshal(result, &list) != nil {
		return nil
	}
	var wanted completionItem
	if json.Unmarshal(item, &wanted) != nil {
		return nil
	}
	found := index
	if index < 0 || index >= len(list.Items) || !wanted.isSame(&list.Items[index]) {
		found = slices.IndexFunc(list.Items, func(i completionItem) bool { return wanted.isSame(&i) })
		if found < 0 || slices.ContainsFunc(list.Items[found+1:], func(i completionItem) bool { return wanted.isSame(&i) }) {
			return nil
		}
	}
	if data := list.Items[found].Data; len(data) > 0 {
		return data
	}
	return list.Defaults.Data
}
