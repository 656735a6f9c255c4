// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/lsp/document"
	"github.com/berth-dev/berth/internal/lsp/wire"
)

// skipBytes is how many bytes of other output may precede the first message of a server.
const skipBytes = 64 << 10

// backend is the state of one incarnation of the server. Each incarnation has its own backend, so that no state is carried over to the next one.
type backend struct {
	incarnation int64
	stdin       io.WriteCloser
	stdout      io.Reader
	out         *queue
	reader      *wire.Reader
	envelope    wire.Envelope
	lastHeard   atomic.Int64
	read        chan struct{} // closed when reading has ended
	written     chan struct{} // closed when writing has ended
	gone        chan struct{} // closed when the backend is detached
	shut        chan struct{} // closed when the server has answered shutdown
	flight      flight
	health      health

	startFolders  []string // the folders of the workspace in initialize, and those that the server has now
	folders       []string
	foldersChange bool // the server accepts changes of its folders

	work        map[string]*work // progress that belongs to no request, by token
	diagnosedAt time.Time        // when diagnostics were last received
	versions    bool             // the server has sent diagnostics with the version of a text
	toldAt      time.Time        // when a change of a document or file was last sent
	filesAt     time.Time        // when the server was last told about files, if it has registered no patterns of files; at first, when it was ready
	forgets     bool             // the server may not notice the last change of files, because another one happened just before
	pull        pulling

	completed    int64            // request.sequence of the last completion that the server has received
	completedFor document.Session // the client that requested it

	stopping     bool // Hold was called: the server receives no more requests
	shutdownSent bool
}

// ready reports whether the server was initialized and has received the documents.
func (b *backend) ready() bool { return !b.health.readyAt.IsZero() }

// accepts reports whether the server accepts messages of clients. b may be nil.
func (b *backend) accepts() bool { return b != nil && b.ready() && !b.stopping && b.health.fault == "" }

// Attach connects a new server and returns immediately. In the background, the server is initialized and receives the open documents.
func (m *Mux) Attach(incarnation int64, stdin io.WriteCloser, stdout io.Reader) {
	m.lock()
	defer m.unlock()
	if m.server != nil {
		m.detach(m.server, lsp.Asked)
	}
	limits := m.config.Limits
	b := &backend{
		incarnation: incarnation, stdin: stdin, stdout: stdout, out: newQueue(m.options.UnreadBytes),
		read: make(chan struct{}), written: make(chan struct{}), gone: make(chan struct{}), shut: make(chan struct{}),
		startFolders: m.config.Folders, folders: m.config.Folders,
		flight: newFlight(), health: health{attachedAt: m.now(), timedOut: map[string]bool{}}, work: map[string]*work{},
	}
	b.lastHeard.Store(b.health.attachedAt.UnixNano())
	b.reader = wire.NewReader(stdout, wire.Limits{HeaderBytes: limits.HeaderBytes, MessageBytes: limits.MessageBytes, Skip: skipBytes}, nil)
	b.reader.Heard = func() { b.lastHeard.Store(m.now().UnixNano()) }
	b.out.attempt, b.out.unflushed = attempt(stdin), &m.unflushed
	m.server, m.incarnation, m.reason = b, incarnation, "the server is starting"
	m.files.pending, m.files.found, m.files.installed, m.files.lost = nil, nil, nil, ""
	m.counters.Incarnations++
	m.changed = true
	go m.readServer(b)
	go func() {
		defer close(b.written)
		_ = b.out.write(stdin) // an error needs no handling: the server then ends its output or falls silent, and both are noticed
	}()
	m.request(b, ownInitialize, "initialize", m.initializeParams())
	m.nudge()
}

func (b *backend) heard() time.Time { return time.Unix(0, b.lastHeard.Load()) }

// put queues a message for the server.
func (b *backend) put(body []byte) {
	b.add(func(buffer []byte) []byte { return wire.AppendFrame(buffer, body) })
}

// add queues the bytes that the function frame appends to a buffer. If the queue is full, the message is lost and the server has to be restarted.
func (b *backend) add(frame func(buffer []byte) []byte) {
	if !b.out.add(needed, "", frame) {
		b.health.overflow = true
	}
}

// request sends the server a request of the multiplexer itself.
func (m *Mux) request(b *backend, what requestOwner, method string, params []byte) {
	r := m.requests.blank()
	r.own, r.method, r.arrived = what, method, m.now()
	b.flight.begin(r, r.arrived)
	b.put(wire.RequestBody(fmt.Appendf(nil, "%d", r.number), method, params))
}

// readServer reads the messages of the server until its output ends.
func (m *Mux) readServer(b *backend) {
	defer close(b.read)
	for {
		body, err := b.reader.Read()
		if wire.Ended(err) {
			m.lock()
			b.health.endedAt = m.now()
			m.nudge()
			m.unlock()
			return
		}
		if err == nil {
			err = wire.Scan(body, &b.envelope)
		}
		if err != nil {
			m.lock()
			m.counters.Rejected++
			m.markFaulty(b, lsp.ReasonProtocolError, "the language server violated the protocol: "+err.Error())
			m.unlock()
			_, _ = io.Copy(io.Discard, b.stdout) // the server must not block on its output while it is being stopped
			return
		}
		m.fromServer(b, body, &b.envelope)
	}
}

// markFaulty marks the server for a restart. The server then receives no more requests and document changes.
func (m *Mux) markFaulty(b *backend, reason, message string) {
	if m.server != b || b.health.fault != "" || b.stopping {
		return
	}
	b.health.fault, b.health.faultMessage, m.reason = reason, message, message
	m.urgent = true
	m.documents.Detach()
	m.log(message)
}

// Hold stops sending requests to the current server, which is about to be stopped. Later requests wait for the next server.
func (m *Mux) Hold(reason string) {
	m.lock()
	defer m.unlock()
	if m.server == nil || m.server.stopping {
		return
	}
	m.server.stopping, m.reason, m.changed = true, reason, true
	m.documents.Detach()
}

// drainPatience is how long a server that is being stopped may take to answer its pending requests.
const drainPatience = 2 * time.Second

// Shutdown shuts down the current server. It first cancels the pending requests that have no effect, so that they can be sent to the next server. Then it waits
// for the answers to all pending requests, for at most drainPatience, and finally sends shutdown and exit.
func (m *Mux) Shutdown(ctx context.Context) error {
	m.Hold("the server is being stopped")
	m.lock()
	b := m.server
	if b == nil {
		m.unlock()
		return errors.New("no server is running")
	}
	drained := b.flight.whenDrained()
	for _, r := range b.flight.pending {
		if r.own == ofClient && r.class != effect && r.class != unknown && !r.cancelled {
			r.withdrawn = true
			m.cancelAtServer(r)
		}
	}
	m.unlock()
	patience := drainPatience
	if end, ok := ctx.Deadline(); ok {
		patience = min(patience, time.Until(end)/2) // the remaining time is for the shutdown itself
	}
	drain, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_ = b.await(drain, drained) // Detach settles the requests that are still pending
	err := m.askToEnd(ctx, b)
	m.lock()
	b.put(wire.NotificationBody("exit", nil))
	m.unlock()
	b.out.close()
	return errors.Join(err, b.await(ctx, b.written))
}

func (m *Mux) askToEnd(ctx context.Context, b *backend) error {
	m.lock()
	if b.shutdownSent || !b.ready() {
		m.unlock()
		return nil
	}
	b.shutdownSent = true
	m.request(b, ownShutdown, "shutdown", nil)
	m.unlock()
	return b.await(ctx, b.shut)
}

// await waits until the channel happened is closed or the server is gone. It returns an error if the context ends first.
func (b *backend) await(ctx context.Context, happened <-chan struct{}) error {
	select {
	case <-happened:
		return nil
	case <-b.gone:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the language server did not answer: %w", ctx.Err())
	}
}
