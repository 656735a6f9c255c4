// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/berth-dev/berth/internal/lsp/document"
	"github.com/berth-dev/berth/internal/lsp/wire"
)

// retryAfter is the retry hint in errors for requests that fail because there is no connection.
const retryAfter = time.Second

func errorBody(id, why string) []byte {
	return failure(id, wire.CodeRequestFailed, why, map[string]any{"reason": "Reconnecting", "retriable": true, "retryAfterMs": retryAfter.Milliseconds()})
}

// lostBody returns the response to a request that was sent, but whose connection was lost before the response. A request that may have changed something is
// marked as not retriable.
func lostBody(id, method string) []byte {
	switch {
	case method == "shutdown":
		// The multiplexer keeps its server running, and the editor only needs this response before it exits.
		return wire.ResultBody([]byte(id), wire.Null)
	case readsOnly(method):
		return errorBody(id, "the connection to the language server was lost during this request; retry it")
	default:
		return failure(id, wire.CodeRequestFailed, "the connection to the language server was lost during this request; it is unknown whether the server carried it out",
			map[string]any{"reason": "Reconnecting", "retriable": false, "outcome": "unknown"})
	}
}

// readsOnly reports whether a request changes nothing, judging by its method.
func readsOnly(method string) bool {
	switch kind, name, _ := strings.Cut(method, "/"); kind {
	case "textDocument":
		return name != "willSaveWaitUntil"
	case "workspace":
		return name == "symbol" || name == "diagnostic"
	case "callHierarchy", "typeHierarchy":
		return true
	default:
		return name == "resolve"
	}
}

func failure(id string, code int, why string, data any) []byte {
	return wire.ErrorBody([]byte(id), code, "berth: "+why, data)
}

// readEditor handles the messages of the editor until its input ends or it sends exit.
func (b *bridge) readEditor() error {
	reader := wire.NewReader(b.In, wire.Limits{BodyBase: -1}, nil)
	var e wire.Envelope
	for {
		body, err := reader.Read()
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrClosedPipe) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read from the editor: %w", err)
		}
		if err := wire.Scan(body, &e); err != nil {
			return fmt.Errorf("read from the editor: %w", err)
		}
		if b.take(body, &e) {
			return nil
		}
	}
}

// take handles one message of the editor. It reports whether that message was the last.
func (b *bridge) take(body []byte, e *wire.Envelope) (done bool) {
	switch e.Kind {
	case wire.Request:
		b.takeRequest(body, string(e.ID), string(e.Method))
	case wire.Notification:
		return b.takeNotification(body, e)
	case wire.Response:
		b.takeResponse(body, e)
	}
	return false
}

func (b *bridge) takeRequest(body []byte, id, method string) {
	b.mu.Lock()
	switch {
	case method == "initialize" && b.initialize == nil:
		b.initialize, b.initializeID = bytes.Clone(body), id
	case method == "shutdown" && b.link == nil:
		// Respond without a connection, because the multiplexer would keep its server running anyway.
		b.mu.Unlock()
		b.answer(wire.ResultBody([]byte(id), wire.Null))
		return
	}
	room := b.put(message{body: bytes.Clone(body), id: id, method: method})
	b.mu.Unlock()
	if !room {
		b.fail(id, "too many requests are waiting for the language server; retry later")
	}
}

func (b *bridge) takeNotification(body []byte, e *wire.Envelope) (done bool) {
	if string(e.Method) == "$/cancelRequest" {
		b.cancel(string(e.CancelID), message{body: bytes.Clone(body), here: true})
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	m := message{body: bytes.Clone(body)}
	switch string(e.Method) {
	case "exit":
		b.put(m)
		b.exited = true
		return true
	case "initialized":
		b.initialized = m.body
	case "textDocument/didOpen", "textDocument/didChange", "textDocument/didClose":
		m.document = true
		b.keep(string(e.Method), e.Params)
		if b.answered && (b.link == nil || !b.link.attached) {
			return false // the next call of attach sends the documents in their current versions
		}
	}
	b.put(m)
	return false
}

// takeResponse forwards a response of the editor to the server, if the request is from the current connection.
func (b *bridge) takeResponse(body []byte, e *wire.Envelope) {
	b.mu.Lock()
	defer b.mu.Unlock()
	id, ok := b.asked[string(e.ID)]
	if !ok {
		return
	}
	delete(b.asked, string(e.ID))
	b.put(message{body: wire.Replaced(body, wire.Replacement{Span: e.IDSpan, With: id}), here: true})
}

// put queues a message. If the queue is full, put blocks while a connection exists, and returns false without a connection.
func (b *bridge) put(m message) bool {
	full := func() bool { return len(b.queue) > 0 && b.queueBytes+len(m.body) > b.WaitBytes }
	for full() && b.link != nil && b.link.attached && !b.link.lost {
		b.changed.Wait()
	}
	if full() {
		return false
	}
	m.since = time.Now()
	b.queue = append(b.queue, m)
	b.queueBytes += len(m.body)
	b.changed.Broadcast()
	return true
}

// cancel withdraws a request that was not sent yet. If the request was already sent, cancel forwards the cancellation to the server.
func (b *bridge) cancel(id string, m message) {
	b.mu.Lock()
	at := slices.IndexFunc(b.queue, func(m message) bool { return m.id == id && id != "" })
	if at < 0 {
		if _, under := b.sent[id]; under {
			b.put(m)
		}
		b.mu.Unlock()
		return
	}
	b.queueBytes -= len(b.queue[at].body)
	b.queue = slices.Delete(b.queue, at, at+1)
	b.mu.Unlock()
	b.answer(failure(id, wire.CodeRequestCancelled, "cancelled", nil))
}

// keep tracks the documents that the editor has open. It ignores invalid content, which is forwarded nevertheless: the multiplexer reports the error.
func (b *bridge) keep(method string, params []byte) {
	var p document.ClientParams
	if json.Unmarshal(params, &p) != nil {
		return
	}
	doc := p.TextDocument
	switch method {
	case "textDocument/didOpen":
		_, _ = b.docs.Open(session, doc.URI, doc.LanguageID, doc.Version, doc.Text)
	case "textDocument/didChange":
		_, _ = b.docs.Change(session, doc.URI, doc.Version, p.ContentChanges)
	case "textDocument/didClose":
		b.docs.Close(session, doc.URI)
	}
}

// ownID returns an ID that no earlier request to the editor had.
func (b *bridge) ownID() string {
	b.ids++
	return strconv.Quote("berth-" + strconv.FormatInt(b.ids, 10))
}
