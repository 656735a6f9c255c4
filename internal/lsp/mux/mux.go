// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"encoding/json"
	"net"
	"sync"
	"time"

	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/lsp/document"
	"github.com/berth-dev/berth/internal/lsp/wire"
)

// readingBytes bounds the messages that all clients together have sent partly.
const readingBytes = 256 << 20

// Options are what a Mux is made of.
type Options struct {
	Config lsp.Config
	// ProcessID is told to the server, which may end when that process does; 0: nothing is told.
	ProcessID int
	// Changed is called when Fill would say something else, Urgent when that can't wait: the server is gone, or has to be restarted. They are
	// called without a lock held, and must not block. Each may be nil.
	Changed, Urgent func()
	// Log gets lines for the operator; nil: nobody does.
	Log func(format string, args ...any)
	// Now is the clock (default time.Now).
	Now func() time.Time
	// CPU is the time that the server's tree has computed; nil: not known.
	CPU func() time.Duration
}

// Mux joins clients to a server. Its methods may be called at the same time.
type Mux struct {
	options Options
	budget  *wire.Budget
	serving sync.WaitGroup // calls of Serve
	kick    chan struct{}  // wakes the goroutine that calls Tick
	over    chan struct{}  // closed by Quit
	awake   sync.WaitGroup

	mu             sync.Mutex
	dirty          bool     // Fill says something else, to be told at the next Tick
	changed        bool     // to be told when mu is released
	urgent         bool     // the same
	messages       []string // to be logged when mu is released
	unflushed      []*queue // to be flushed then
	config         lsp.Config
	configured     int // times that it was set
	quitting       bool
	sessions       map[document.Session]*session
	newestSession  document.Session
	idleSince      time.Time
	documents      *document.Set
	open           map[string]string // URIs of open documents, to look them up without allocation
	server         *backend
	incarnation    int64  // the newest that was attached
	holding        bool   // nothing more is admitted to the present server
	reason         string // why there is none to serve, for people
	answer         *initializeAnswer
	promised       map[string]json.RawMessage // capabilities that clients were told of
	lost           []string                   // of them, those that the present server lacks
	waiting        []*request                 // in order of arrival
	sequence       int64
	free           []*request
	names          map[string]string
	replacements   [3]wire.Replacement
	scratch        [3][32]byte
	pumps          int64         // calls of pump
	resting        time.Duration // until the next Tick
	registrations  []*registration
	published      map[string]*publication
	quarantine     map[string]time.Time // requests, by method and URI
	poison         map[string]time.Time // documents
	crashesWith    map[string]int       // documents that were open at so many crashes in a row
	fatalLast      map[string]bool      // requests, not to be replayed, that were in flight at the last crash
	counters       lsp.Counters
	timedOut       map[string]bool // requests that got too old since one succeeded
	askedOfClients int64
}

// New returns a Mux without a server. Quit ends it.
func New(options Options) *Mux {
	m := newMux(options)
	m.awake.Add(1)
	go m.wakeUp()
	return m
}

// newMux is New for tests that call Tick themselves.
func newMux(options Options) *Mux {
	if options.Now == nil {
		options.Now = time.Now
	}
	config := options.Config.WithDefaults()
	m := &Mux{
		options: options, config: config, budget: wire.NewBudget(readingBytes),
		kick: make(chan struct{}, 1), over: make(chan struct{}),
		sessions:  map[document.Session]*session{},
		documents: document.NewSet(documentLimits(config.Limits)),
		open:      map[string]string{}, names: map[string]string{}, published: map[string]*publication{},
		quarantine: map[string]time.Time{}, poison: map[string]time.Time{}, crashesWith: map[string]int{},
		fatalLast: map[string]bool{}, timedOut: map[string]bool{},
		reason: "the language server was not started yet",
	}
	m.documents.Detach()
	m.idleSince = m.now()
	return m
}

func (m *Mux) now() time.Time { return m.options.Now() }

// Configure sets what the next incarnation is told, and the bounds that hold from now on: clients may have come before any was known.
func (m *Mux) Configure(config lsp.Config) {
	m.lock()
	defer m.unlock()
	m.config = config.WithDefaults()
	m.configured++
	m.documents.Limit(documentLimits(m.config.Limits))
	for _, s := range m.sessions {
		s.out.setLimit(m.config.Limits.QueueBytes)
	}
}

func documentLimits(limits lsp.Limits) document.Limits {
	return document.Limits{Documents: limits.OpenDocuments, Bytes: limits.DocumentBytes}
}

// clientLimits bound what is read from a client.
func clientLimits(limits lsp.Limits) wire.Limits {
	return wire.Limits{HeaderBytes: limits.HeaderBytes, MessageBytes: limits.ClientMessageBytes}
}

func (m *Mux) lock() { m.mu.Lock() }

// unlock releases the state and tells what has to be told of it.
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

// fetchUnflushed returns the queue that was added to, to be flushed. Of more than one each is left to its writer: they write side by side.
func (m *Mux) fetchUnflushed() (only *queue) {
	if len(m.unflushed) == 1 {
		only = m.unflushed[0]
	} else {
		for _, q := range m.unflushed {
			q.signal()
		}
	}
	clear(m.unflushed)
	m.unflushed = m.unflushed[:0]
	return only
}

func (m *Mux) log(message string) {
	if len(m.messages) < 100 {
		m.messages = append(m.messages, message)
	}
}

// Serve serves one client until it ends, and closes the connection.
func (m *Mux) Serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	s, refusal := m.join(conn)
	if s == nil {
		_ = conn.SetWriteDeadline(time.Now().Add(lastWords))
		_, _ = conn.Write(frame(errorBody(null, codeRequestFailed, refusal, nil)))
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

// Quit tells the clients why, closes their connections and returns when all are closed. The server has ended before, or is given up.
func (m *Mux) Quit(reason string) {
	m.lock()
	if !m.quitting {
		m.quitting = true
		close(m.over)
	}
	m.reason = reason
	for _, s := range m.sessions {
		m.dismiss(s, reason)
	}
	if m.server != nil {
		m.detach(m.server, true)
	}
	m.unlock()
	m.serving.Wait()
	m.awake.Wait()
}
