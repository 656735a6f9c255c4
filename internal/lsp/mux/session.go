// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"bytes"
	"encoding/json"
	"fmt"
	"iter"
	"net"
	"slices"
	"time"

	"github.com/berth-dev/berth/internal/lsp/document"
	"github.com/berth-dev/berth/internal/lsp/wire"
)

// stage is the state of a client's initialization.
type stage uint8

const (
	fresh        stage = iota // the client has not sent initialize
	initializing              // the client waits for the answer to initialize
	initialized               // the answer was sent
	ready                     // the client has sent initialized, and accepts notifications and requests
	finished                  // the client has sent shutdown
)

// lastWords is how long a client that is being disconnected may take to read what was queued.
const lastWords = 2 * time.Second

// session is one client.
type session struct {
	key      document.Session
	conn     net.Conn
	out      *queue
	reader   *wire.Reader
	envelope wire.Envelope
	// configured is the value of Mux.configured when the reader's limits were set.
	configured int
	stage      stage
	// closing: nothing more is read from the client, and nothing more is queued for it.
	closing bool

	initID       []byte // ID of the initialize request that is not answered yet
	initSince    time.Time
	capabilities json.RawMessage
	name         string        // as the client calls itself
	progress     bool          // the client can show progress of the server
	conversions  []*conversion // of results for the client

	open         []*request // its unanswered requests
	inFlight     int
	waiting      int // number of requests and notifications that wait for a server; waitingBytes is their size
	waitingBytes int
	blocked      int64 // value of waiting.rounds when a request of this session had to keep waiting
	asked        map[int64]*serverRequest
	completions  []completion // the last ones that were sent to the server
}

// join creates a session for a connection, or returns why the client is refused.
func (m *Mux) join(conn net.Conn) (s *session, refusal string) {
	m.lock()
	defer m.unlock()
	limits := m.config.Limits
	switch {
	case m.quitting:
		return nil, m.reason
	case len(m.clients.sessions) >= limits.Clients:
		m.counters.Rejected++
		m.dirty = true
		return nil, fmt.Sprintf("%d clients are already connected; close one, or raise the limit of clients", len(m.clients.sessions))
	}
	s = &session{
		conn: conn, out: newQueue(limits.QueueBytes), asked: map[int64]*serverRequest{},
		reader: wire.NewReader(conn, clientLimits(limits), m.budget), configured: m.configured,
	}
	s.out.attempt, s.out.unflushed = attempt(conn), &m.unflushed
	m.clients.add(s)
	m.serving.Add(1)
	m.changed = true
	m.nudge()
	return s, ""
}

// readClient reads messages of the client until the connection ends or the client breaks the protocol.
func (m *Mux) readClient(s *session) {
	for {
		body, err := s.reader.Read()
		if err == nil {
			err = wire.Scan(body, &s.envelope)
		} else if wire.Ended(err) {
			return
		}
		if err != nil {
			m.lock()
			m.violation(s, wire.CodeParse, err.Error())
			m.unlock()
			return
		}
		if !m.fromClient(s, body, &s.envelope) {
			return
		}
	}
}

// violation closes the connection of a client that broke the protocol. Other clients are not affected.
func (m *Mux) violation(s *session, code int, message string) {
	if s.closing {
		return
	}
	m.counters.Rejected++
	m.log("disconnected a client that violated the protocol: " + message)
	m.send(s, wire.ErrorBody(wire.Null, code, message, nil))
	m.hangUp(s)
}

// hangUp closes the connection when everything queued has been written, at the latest after lastWords.
func (m *Mux) hangUp(s *session) {
	s.closing = true
	_ = s.conn.SetWriteDeadline(time.Now().Add(lastWords))
	s.out.close()
}

// dismiss closes a session and fails all its requests with the reason.
func (m *Mux) dismiss(s *session, reason string) {
	if s.closing {
		return
	}
	for len(s.open) > 0 {
		m.take(s.open[0])
		m.fail(s.open[0], wire.CodeRequestFailed, reason, &detail{Reason: "Quit", Incarnation: m.incarnation, Outcome: outcome(s.open[0])})
	}
	if s.stage == initializing {
		m.send(s, wire.ErrorBody(s.initID, wire.CodeRequestFailed, reason, &detail{Reason: "Quit", Incarnation: m.incarnation}))
	}
	m.send(s, wire.NotificationBody("window/showMessage", wire.Encode(map[string]any{"type": 2, "message": reason})))
	m.hangUp(s)
}

// leave removes a session whose connection has ended.
func (m *Mux) leave(s *session) {
	m.lock()
	defer m.unlock()
	if !s.closing {
		s.closing = true
		s.out.abort()
		_ = s.conn.Close()
	}
	m.clients.remove(s, m.now())
	m.inquiries = slices.DeleteFunc(m.inquiries, func(r *request) bool { return r.session == s })
	for _, r := range s.open {
		m.abandon(r)
	}
	s.open = nil
	m.waiting.removeFunc(m.now(), func(r *request) bool { return r.session == s }, m.forget)
	m.emit(m.documents.Drop(s.key))
	m.closed()
	for number, q := range s.asked {
		m.giveUp(s, number, q)
	}
	if m.server != nil {
		for _, w := range m.server.work {
			delete(w.to, s)
		}
	}
	m.changed = true
	m.pump()
}

// abandon cancels a request whose client is gone, so that its answer is discarded.
func (m *Mux) abandon(r *request) {
	if r.place != inFlight {
		return // leave removes it from the waiting requests
	}
	m.cancelAtServer(r)
	m.server.flight.disown(r)
}

// send queues a message for a client.
func (m *Mux) send(s *session, body []byte) { m.sendAs(s, body, needed, "") }

func (m *Mux) sendAs(s *session, body []byte, kind importance, key string) {
	m.add(s, kind, key, func(buffer []byte) []byte { return wire.AppendFrame(buffer, body) })
}

// add queues the bytes that the function frame appends to a buffer, and disconnects a client that does not read.
func (m *Mux) add(s *session, kind importance, key string, frame func(buffer []byte) []byte) {
	if !s.closing && !s.out.add(kind, key, frame) {
		m.tooSlow(s)
	}
}

// tooSlow disconnects a client that does not read.
func (m *Mux) tooSlow(s *session) {
	m.counters.SlowClients++
	m.changed = true
	m.log(fmt.Sprintf("disconnected client %d, because it does not read: more than %d bytes are queued", s.key, m.config.Limits.QueueBytes))
	s.closing = true
	s.out.abort()
	_ = s.conn.Close()
}

// find returns the unanswered request of a session with this raw ID, or nil.
func (s *session) find(id []byte) *request {
	for _, r := range s.open {
		if bytes.Equal(r.id, id) {
			return r
		}
	}
	return nil
}

// clients holds the sessions of the connected clients.
type clients struct {
	sessions  map[document.Session]*session
	newest    document.Session
	idleSince time.Time // when the last client left; zero while there are clients
	asked     int64     // number of requests that were sent to clients
}

// add adds a session and gives it a key.
func (c *clients) add(s *session) {
	c.newest++
	s.key = c.newest
	c.sessions[s.key] = s
	c.idleSince = time.Time{}
}

func (c *clients) remove(s *session, now time.Time) {
	delete(c.sessions, s.key)
	if len(c.sessions) == 0 {
		c.idleSince = now
	}
}

// ready returns the sessions that accept notifications and requests.
func (c *clients) ready() iter.Seq[*session] {
	return func(yield func(*session) bool) {
		for _, s := range c.sessions {
			if s.stage == ready && !yield(s) {
				return
			}
		}
	}
}

// haveInitialized reports whether any client has received an answer to initialize.
func (c *clients) haveInitialized() bool {
	for _, s := range c.sessions {
		if s.stage >= initialized {
			return true
		}
	}
	return false
}
