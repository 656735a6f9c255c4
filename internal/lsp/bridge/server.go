// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/berth-dev/berth/internal/lsp/wire"
)

// errEnded means that the other end closed the connection in an orderly way.
var errEnded = errors.New("the connection was closed")

// write attaches, and then sends queued messages until the connection is lost.
func (b *bridge) write(l *link) error {
	if err := b.attach(l); err != nil {
		return err
	}
	for {
		m, ok := b.next(l)
		if !ok {
			return nil
		}
		if _, err := l.conn.Write(wire.AppendFrame(nil, m.body)); err != nil {
			return fmt.Errorf("write: %w", err)
		}
	}
}

// attach sends a new multiplexer the messages of the editor that still apply. It does not forward the response to the repeated initialize request.
func (b *bridge) attach(l *link) error {
	b.mu.Lock()
	if !b.answered {
		l.attached = true // the initialize request of the editor is queued or still to come
		b.changed.Broadcast()
		b.mu.Unlock()
		return nil
	}
	l.reattach = b.ownID()
	var e wire.Envelope
	err := wire.Scan(b.initialize, &e)
	again := wire.Replaced(b.initialize, wire.Replacement{Span: e.IDSpan, With: []byte(l.reattach)})
	b.mu.Unlock()
	if err != nil {
		return fmt.Errorf("read the recorded initialize request of the editor: %w", err)
	}
	if _, err := l.conn.Write(wire.AppendFrame(nil, again)); err != nil {
		return fmt.Errorf("write: %w", err)
	}

	b.mu.Lock()
	for l.reattach != "" && !l.lost {
		b.changed.Wait()
	}
	if l.lost {
		b.mu.Unlock()
		return nil // readServer returns the cause
	}
	before := b.soFar()
	l.attached = true
	b.changed.Broadcast()
	b.mu.Unlock()
	for _, body := range before {
		if _, err := l.conn.Write(wire.AppendFrame(nil, body)); err != nil {
			return fmt.Errorf("write: %w", err)
		}
	}
	b.Say("reconnected")
	return nil
}

// soFar returns the messages that the editor sent after initialize and that still apply: initialized, and the open documents in their current versions.
func (b *bridge) soFar() [][]byte {
	var said [][]byte
	if b.initialized != nil {
		said = append(said, b.initialized)
	}
	for _, n := range b.docs.Opened(session) {
		said = append(said, wire.NotificationBody(n.Method, n.Params))
	}
	return said
}

// next returns the oldest queued message and waits for one if necessary. It returns false when the connection is lost. A returned request counts as sent,
// because the bridge cannot determine whether the request arrives.
func (b *bridge) next(l *link) (message, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	l.busy = false
	b.changed.Broadcast()
	for len(b.queue) == 0 && !l.lost {
		b.changed.Wait()
	}
	if l.lost {
		return message{}, false
	}
	l.busy = true
	m := b.queue[0]
	b.queue = b.queue[1:]
	b.queueBytes -= len(m.body)
	if m.id != "" {
		b.sent[m.id] = m.method
	}
	b.changed.Broadcast()
	return m, true
}

// readServer forwards the messages of the multiplexer to the editor until the connection is lost.
func (b *bridge) readServer(l *link) error {
	reader := wire.NewReader(l.conn, wire.Limits{MessageBytes: 256 << 20, BodyBase: -1}, nil)
	var e wire.Envelope
	for {
		body, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return errEnded
		}
		if err != nil {
			return fmt.Errorf("read: %w", err)
		}
		if err := wire.Scan(body, &e); err != nil {
			return fmt.Errorf("read: %w", err)
		}
		if err := b.pass(l, body, &e); err != nil {
			return err
		}
	}
}

// pass forwards one message of the multiplexer to the editor.
func (b *bridge) pass(l *link, body []byte, e *wire.Envelope) error {
	switch e.Kind {
	case wire.Request:
		b.mu.Lock()
		id := b.ownID()
		b.asked[id] = bytes.Clone(e.ID)
		b.mu.Unlock()
		b.send(e.AppendWithID(nil, body, []byte(id)))
		return nil
	case wire.Response:
		id := string(e.ID)
		b.mu.Lock()
		if l.reattach != "" && id == l.reattach {
			defer b.mu.Unlock()
			if e.IsError {
				return fmt.Errorf("the multiplexer rejected the connection: %s", e.Result)
			}
			l.reattach = ""
			b.changed.Broadcast()
			return nil
		}
		_, known := b.sent[id]
		delete(b.sent, id)
		b.changed.Broadcast()
		if known && id == b.initializeID {
			b.answered = !e.IsError
			if e.IsError {
				b.initialize, b.initializeID = nil, ""
			}
		}
		b.mu.Unlock()
		if !known {
			return nil // the request was already answered
		}
	}
	b.answer(body)
	return nil
}
