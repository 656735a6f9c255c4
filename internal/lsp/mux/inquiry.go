// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/lsp/document"
	"github.com/berth-dev/berth/internal/lsp/wire"
)

const (
	// quiet is how long a server must have received no new text and sent no diagnostics and no progress before its diagnostics count as complete.
	quiet = 400 * time.Millisecond
	// quietAfterOthers is the same if another document has changed since the server published the diagnostics, because the server publishes them again only if
	// they differ.
	quietAfterOthers = 2 * time.Second
	// inquiryPatience is how long an inquiry waits if the client sets no timeout. A client can set at most maxInquiryPatience.
	inquiryPatience, maxInquiryPatience = 10 * time.Second, 10 * time.Minute
	// maxInquiries is the maximum number of unanswered inquiries of all clients.
	maxInquiries = 1000
)

// inquiry is a request berth/diagnostics (lsp.MethodDiagnostics). The multiplexer first sends the server another request in its place, whose answer shows that the
// server has the text, because a server processes messages in order. Then the inquiry waits until the published diagnostics are those of the text.
type inquiry struct {
	uri, text string // text is the client's text when it sent the inquiry
	filesOnly bool   // it is a request berth/sync (lsp.MethodSync), which is over when the server has been told about the files
	deadline  time.Time
	method    diagnosisMethod
	step      int
	synced    int64          // the request of the multiplexer waits for this Synced of a report about files; 0: it does not wait
	answered  bool           // the server has answered the requests in place of the inquiry
	failure   string         // the error with which the server has answered them; empty if there is none
	seen      *publication   // the diagnostics that this server has published for the text
	found     []tsDiagnostic // the diagnostics in the answers, of the method byTSServer
}

// inquire adds an inquiry of a client and sends the first request in its place.
func (m *Mux) inquire(r *request, params json.RawMessage) {
	var p struct {
		URI         string `json:"uri"`
		ContentHash string `json:"contentHash"`
		TimeoutMs   int64  `json:"timeoutMs"`
	}
	if err := json.Unmarshal(params, &p); err != nil || p.URI == "" {
		m.fail(r, wire.CodeInvalidParams, lsp.MethodDiagnostics+` requires the parameter "uri"`, nil)
		return
	}
	text, _, open := m.documents.Text(r.session.key, p.URI)
	switch {
	case !open:
		m.fail(r, wire.CodeInvalidParams, p.URI+" is not open in this client; send textDocument/didOpen first", nil)
		return
	case len(m.inquiries) >= maxInquiries:
		m.failWaiting(r, false)
		return
	}
	patience := inquiryPatience
	if p.TimeoutMs > 0 {
		patience = time.Duration(min(p.TimeoutMs, maxInquiryPatience.Milliseconds())) * time.Millisecond
	}
	r.inquiry = &inquiry{uri: p.URI, text: text, deadline: m.now().Add(patience)}
	m.inquiries = append(m.inquiries, r)
	if hash := lsp.ContentHash(text); p.ContentHash != "" && p.ContentHash != hash {
		m.conclude(r, fmt.Sprintf("this client has sent another text of the document, with the hash %s", hash))
		return
	}
	if m.files.watcher == nil && m.files.unseen != "" {
		m.watchFiles() // it could not be started before
	}
	if m.files.watcher != nil {
		r.inquiry.synced = m.files.watcher.Sync() // the server learns first what has changed on disk; see filesRead
		return
	}
	m.diagnose(r)
}

// syncPatience is how long a request berth/sync waits.
const syncPatience = 2 * time.Second

// syncFiles answers a request berth/sync after the server has received the changes on disk.
func (m *Mux) syncFiles(r *request) {
	if m.files.watcher == nil || len(m.inquiries) >= maxInquiries {
		m.synced(r)
		return
	}
	r.inquiry = &inquiry{filesOnly: true, deadline: m.now().Add(syncPatience), synced: m.files.watcher.Sync()}
	m.inquiries = append(m.inquiries, r)
	m.nudge()
}

func (m *Mux) synced(r *request) {
	m.send(r.session, wire.ResultBody(r.id, wire.Null))
	m.forget(r)
}

// diagnose sends the next request in place of an inquiry. It is treated like any request of the client: it waits for a server that restarts, and is sent again
// after a crash.
func (m *Mux) diagnose(r *request) {
	m.rewrite(r)
	r.sent = time.Time{} // this request was not sent before
	m.submit(r)
}

// rewrite turns an inquiry into the next request in its place.
func (m *Mux) rewrite(r *request) {
	q := r.inquiry
	if q.step == 0 {
		q.method = byMarker
		if m.features.answer != nil {
			q.method = diagnosisOf(m.features.answer.result.Capabilities)
		}
	}
	method, params := q.method.request(q.uri, q.step)
	var e wire.Envelope
	r.body = wire.RequestBody(r.id, method, params)
	_ = wire.Scan(r.body, &e) // the body is valid, because the id was scanned before
	r.method, r.class, r.uri = method, read, append(r.uri[:0], q.uri...)
	r.spans, r.workRaw, r.partRaw = spans{id: e.IDSpan}, nil, nil
}

// rewind makes an inquiry begin again, at the next server.
func (m *Mux) rewind(r *request) {
	q := r.inquiry
	q.step, q.answered, q.failure, q.seen, q.found = 0, false, "", nil, nil
	m.rewrite(r)
}

// diagnosed handles the answer to a request that was sent in place of an inquiry.
func (m *Mux) diagnosed(r *request, e *wire.Envelope) {
	q := r.inquiry
	if r.cancelled {
		m.fail(r, wire.CodeRequestCancelled, "canceled", nil)
		return
	}
	// A server without document symbols answers with an error, after it has processed the text.
	if q.method != byMarker {
		var found []tsDiagnostic
		found, q.failure = q.method.read(e.Result, e.IsError)
		q.found = append(q.found, found...)
	}
	if q.step++; q.failure == "" && q.step < q.method.steps() {
		m.diagnose(r)
		return
	}
	q.answered = true
	if p := m.published.of(q.uri); q.seen == nil && p != nil && !p.stale {
		m.see(p)
	}
	if q.seen == nil && q.method != byTSServer {
		m.documents.MarkDue(r.session.key, q.uri)
	}
	m.settle(r)
}

// see keeps published diagnostics for the inquiries about their text.
func (m *Mux) see(p *publication) {
	for _, r := range m.inquiries {
		_, served, _ := m.documents.Text(r.session.key, r.inquiry.uri)
		if p.version != nil && *p.version == served && document.Key(p.uri) == document.Key(r.inquiry.uri) {
			r.inquiry.seen = p
		}
	}
}

// settleAll answers the inquiries whose diagnostics are now known, and those whose time is up.
func (m *Mux) settleAll() {
	for _, r := range slices.Clone(m.inquiries) {
		switch {
		case !r.inquiry.filesOnly:
			m.settle(r)
		case !m.now().Before(r.inquiry.deadline):
			m.synced(r)
		}
	}
}

// settle answers an inquiry if its diagnostics are known, if they will not be known, or if its time is up.
func (m *Mux) settle(r *request) {
	text, served, open := m.documents.Text(r.session.key, r.inquiry.uri)
	late := !m.now().Before(r.inquiry.deadline)
	switch {
	case !open || text != r.inquiry.text:
		m.conclude(r, "the client has changed the document meanwhile")
	case r.inquiry.answered && r.inquiry.failure != "":
		m.conclude(r, r.inquiry.failure)
	case r.inquiry.answered && r.inquiry.method == byTSServer:
		m.conclude(r, "")
	case r.inquiry.answered && m.serves():
		if doubt, final := r.inquiry.doubt(m.evidence(r.inquiry.uri, served)); final || late {
			m.conclude(r, doubt)
		}
	case !late:
	case r.inquiry.synced > 0:
		m.conclude(r, "the changes of files on disk have not been read in time")
	case !m.serves() && m.reason != "":
		m.conclude(r, "the language server is restarting ("+m.reason+")")
	default:
		m.conclude(r, "the server has not processed the content in time")
	}
}

// evidence is what is known about the diagnostics of a document at one moment.
type evidence struct {
	published *publication // the newest diagnostics; nil if there are none
	served    int64        // the server's version of the text
	now       time.Time
	active    time.Time // when the server last received a text, or sent diagnostics or progress
	toldAt    time.Time // when the server last received a change of any document or file
	tasks     int       // how many tasks of the server are in progress
	busy      bool      // the server reports that it is working
	versions  bool      // the server has stated versions with other diagnostics
	// requested: the server returns the diagnostics of this document only on request; owed: the answer to such a request is outstanding.
	requested, owed bool
}

func (m *Mux) evidence(uri string, served int64) evidence {
	b := m.server
	return evidence{
		published: m.published.of(uri), served: served, now: m.now(), toldAt: b.toldAt, tasks: len(b.work), busy: b.health.busyStatus, versions: b.versions,
		active:    latest(b.diagnosedAt, b.health.workAt, b.toldAt),
		requested: b.pull.offered && !b.pull.published[document.Key(uri)], owed: b.pull.owes(uri),
	}
}

// doubt returns why the published diagnostics of a document may not be those of the server's text; empty if they are. final is true if waiting longer does not
// change this.
func (q *inquiry) doubt(e evidence) (reason string, final bool) {
	p := e.published
	if q.seen != nil {
		p, e.served = q.seen, *q.seen.version
	}
	idle := e.now.Sub(e.active)
	switch {
	case p == nil || p.stale:
		return "the server has sent no diagnostics for this file", false
	case p.version == nil:
		return "the server does not state for which content its diagnostics are", idle >= quiet && !e.versions
	case *p.version != e.served:
		return "the server has sent no diagnostics for this content in time", false
	case e.requested && e.owed:
		return "the server has not answered the request for diagnostics in time", false
	case e.requested, q.method == byGopls:
		return "", true
	case e.tasks > 0:
		return fmt.Sprintf("the server is still working (%d tasks in progress)", e.tasks), false
	case e.busy:
		return "the server is still working", false
	case p.at.Before(e.toldAt) && idle < quietAfterOthers:
		return "other documents have changed, and may change the diagnostics of this one", false
	case idle < quiet:
		return "the server is still sending diagnostics", false
	}
	return "", true
}

func latest(times ...time.Time) time.Time { return slices.MaxFunc(times, time.Time.Compare) }

// conclude answers an inquiry. doubt is why the diagnostics may not be those of the text; empty if they are.
func (m *Mux) conclude(r *request, doubt string) {
	q, s := r.inquiry, r.session
	result := lsp.Diagnosis{
		URI: q.uri, ContentHash: lsp.ContentHash(q.text), Reason: cmp.Or(doubt, m.files.doubt(q.uri)), Diagnostics: json.RawMessage("[]"),
	}
	result.Settled = result.Reason == ""
	if version, open := m.documents.ClientVersion(s.key, q.uri); open {
		result.Version = version
	}
	result.BasedOnUnsaved = m.names(m.documents.Unsaved(s.key))
	p := m.published.of(q.uri)
	switch {
	case q.method == byTSServer && doubt == "":
		result.Diagnostics = converted(q.found)
	case q.seen != nil:
		result.Diagnostics = q.seen.diagnostics
	case p != nil && m.mayShow(p, s):
		result.Diagnostics = p.diagnostics
	}
	m.send(s, wire.ResultBody(r.id, wire.Encode(result)))
	if r.place == inFlight { // its answer is discarded
		s.open = slices.DeleteFunc(s.open, func(open *request) bool { return open == r })
		m.dropInquiry(r)
		m.abandon(r)
		return
	}
	m.take(r)
	m.forget(r)
}

// names returns the names of sessions, sorted.
func (m *Mux) names(sessions []document.Session) (names []string) {
	for _, key := range sessions {
		if s := m.clients.sessions[key]; s != nil {
			names = append(names, s.name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (m *Mux) dropInquiry(r *request) {
	m.inquiries = slices.DeleteFunc(m.inquiries, func(other *request) bool { return other == r })
	r.inquiry = nil
}

// repeatInquiries starts the inquiries again that wait for diagnostics of a server that is gone.
func (m *Mux) repeatInquiries() {
	for _, r := range slices.Clone(m.inquiries) {
		if r.inquiry.answered {
			m.rewind(r)
			m.submit(r)
		}
	}
}
