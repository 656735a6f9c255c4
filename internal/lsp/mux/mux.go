// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"cmp"
	"crypto/rand"
	"net"
	"sync"
	"time"

	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/lsp/document"
	"github.com/berth-dev/berth/internal/lsp/watch"
	"github.com/berth-dev/berth/internal/lsp/wire"
)

// readingBytes is the maximum total size of incomplete messages from all clients.
const readingBytes = 256 << 20

// Options configure a Mux.
type Options struct {
	Config lsp.Config
	// ProcessID is sent to the server, which may exit when the process with this ID exits; 0: none is sent.
	ProcessID int
	// Changed is called when the result of Fill has changed, Urgent when the change must be reported immediately: the server is gone or has to be restarted. Both
	// are called without a lock held and must not block. Each may be nil.
	Changed, Urgent func()
	// Log receives lines for the operator; nil discards them.
	Log func(format string, args ...any)
	// Now is the clock (default time.Now).
	Now func() time.Time
	// Watch watches folders on disk until Close is called, which waits for the calls of report; nil: changes on disk are not reported to the server. The server has
	// read no file before the time since.
	Watch func(folders []string, since time.Time, report func(watch.Report)) (Files, error)
	// UnreadBytes is the maximum number of bytes queued for a server that does not read, in addition to the documents that it receives at its start
	// (default 64 MiB).
	UnreadBytes int
	// CPU returns the CPU time of the server's tree; nil: unknown.
	CPU func() time.Duration
}

// Mux connects clients to a server. Its methods are safe for concurrent use.
type Mux struct {
	options Options
	budget  *wire.Budget
	// identity distinguishes the stamps of this Mux from those of another one.
	identity string
	serving  sync.WaitGroup // calls of Serve
	kick     chan struct{}  // wakes the goroutine that calls Tick
	over     chan struct{}  // closed by Quit
	awake    sync.WaitGroup

	mu sync.Mutex
	effects
	config        lsp.Config
	configured    int // number of calls of Configure
	quitting      bool
	clients       clients
	documents     *document.Set
	open          map[string]string // URIs of open documents, to look them up without allocation
	server        *backend
	incarnation   int64  // the newest attached incarnation
	reason        string // why no server is available, for messages
	features      features
	waiting       waiting
	requests      requestPool
	resting       time.Duration // time until the next Tick
	files         fileWatch
	inquiries     []*request
	published     publications
	awaitingSince time.Time // since when Tick has found that documents.Awaits; zero: it does not
	quarantine    quarantine
	causes        causes
	counters      lsp.Counters
}

// New returns a Mux without a server. Quit stops it.
func New(options Options) *Mux {
	m := newMux(options)
	m.awake.Add(1)
	go m.wakeUp()
	return m
}

// newMux is New without the goroutine that calls Tick, for tests that call Tick themselves.
func newMux(options Options) *Mux {
	if options.Now == nil {
		options.Now = time.Now
	}
	options.UnreadBytes = cmp.Or(options.UnreadBytes, unreadBytes)
	config := options.Config.WithDefaults()
	m := &Mux{
		options: options, config: config, budget: wire.NewBudget(readingBytes), identity: rand.Text()[:8],
		kick: make(chan struct{}, 1), over: make(chan struct{}),
		clients:   clients{sessions: map[document.Session]*session{}},
		documents: document.NewSet(documentLimits(config.Limits)),
		open:      map[string]string{}, requests: requestPool{names: map[string]string{}}, published: publications{},
		quarantine: newQuarantine(),
		reason:     "the language server has not started yet",
	}
	m.waiting.counters = &m.counters
	m.documents.HoldFor(func(key string, except document.Session) bool {
		return m.server != nil && m.server.flight.asks(key, except)
	})
	m.documents.Detach()
	m.clients.idleSince = m.now()
	return m
}

func (m *Mux) now() time.Time { return m.options.Now() }

// Configure sets the configuration of the next incarnation. The limits take effect immediately, also for clients that are connected already.
func (m *Mux) Configure(config lsp.Config) {
	m.lock()
	defer m.unlock()
	m.config = config.WithDefaults()
	m.watchFiles()
	m.configured++
	m.documents.Limit(documentLimits(m.config.Limits))
	for _, s := range m.clients.sessions {
		s.out.setLimit(m.config.Limits.QueueBytes)
	}
}

func documentLimits(limits lsp.Limits) document.Limits {
	return document.Limits{Documents: limits.OpenDocuments, Bytes: limits.DocumentBytes, Total: 8 * limits.DocumentBytes}
}

// clientLimits returns the limits for reading from a client.
func clientLimits(limits lsp.Limits) wire.Limits {
	return wire.Limits{HeaderBytes: limits.HeaderBytes, MessageBytes: limits.ClientMessageBytes}
}

// Serve serves one client until the connection ends, and closes the connection.
func (m *Mux) Serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	s, refusal := m.join(conn)
	if s == nil {
		_ = conn.SetWriteDeadline(time.Now().Add(lastWords))
		_, _ = conn.Write(frame(wire.ErrorBody(wire.Null, wire.CodeRequestFailed, refusal, nil)))
		return
	}
	defer m.serving.Done()
	written := make(chan struct{})
	go func() {
		defer close(written)
		_ = s.out.write(conn)
		_ = conn.Close()
	}()
	m.readClient(s)
	m.leave(s)
	<-written
}

// Quit sends the reason to the clients, closes their connections and returns when all are closed. It does not stop the server: a server that is still attached
// is only detached.
func (m *Mux) Quit(reason string) {
	m.lock()
	if !m.quitting {
		m.quitting = true
		close(m.over)
	}
	m.reason = reason
	for _, s := range m.clients.sessions {
		m.dismiss(s, reason)
	}
	if m.server != nil {
		m.detach(m.server, lsp.Asked)
	}
	watcher := m.files.watcher
	m.files.watcher = nil
	m.unlock()
	if watcher != nil {
		watcher.Close() // without the lock, because it waits for filesRead
	}
	m.serving.Wait()
	m.awake.Wait()
}

// effects are recorded while Mux.mu is held, because no call may block then. They take effect when mu is released.
type effects struct {
	dirty     bool     // the result of Fill has changed; reported at the next Tick
	changed   bool     // Options.Changed is to be called
	urgent    bool     // Options.Urgent is to be called
	messages  []string // to be logged
	unflushed []*queue // to be flushed
}

func (m *Mux) lock() {
	m.mu.Lock()
	m.documents.SetTime(m.now())
}

// unlock releases mu, and then flushes the queues and reports the changes that were recorded while mu was held.
func (m *Mux) unlock() {
	changed, urgent, messages := m.changed, m.urgent, m.messages
	m.changed, m.urgent, m.messages = false, false, nil
	queue := m.fetchUnflushed()
	m.mu.Unlock()
	if queue != nil {
		queue.flush()
	}
	if urgent && m.options.Urgent != nil {
		m.options.Urgent()
	}
	if changed && !urgent && m.options.Changed != nil {
		m.options.Changed()
	}
	for _, message := range messages {
		if m.options.Log != nil {
			m.options.Log("%s", message)
		}
	}
}

// fetchUnflushed returns the queue that messages were added to, if there is only one; the caller must flush it. If there are several, fetchUnflushed wakes
// their writers, which write concurrently, and returns nil.
func (e *effects) fetchUnflushed() (only *queue) {
	if len(e.unflushed) == 1 {
		only = e.unflushed[0]
	} else {
		for _, q := range e.unflushed {
			q.signal()
		}
	}
	clear(e.unflushed)
	e.unflushed = e.unflushed[:0]
	return only
}

func (e *effects) log(message string) {
	if len(e.messages) < 100 {
		e.messages = append(e.messages, message)
	}
}
