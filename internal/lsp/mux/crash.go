// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"
)

const (
	// streamPatience is how long reading the last output of a server that has exited may take.
	streamPatience = 2 * time.Second
	// quarantineTime is how long documents and requests that were present at repeated crashes are withheld from servers.
	quarantineTime = 10 * time.Minute
	// soon is the time after the initialization of a server in which a crash is attributed to the open documents.
	soon = 30 * time.Second
	// poisonCrashes is the number of consecutive crashes after which a document is quarantined. requestCrashes is the number of crashes after which a request of
	// class read is quarantined.
	poisonCrashes, requestCrashes = 3, 2
)

// Detach must be called when the server has exited or its connection was lost. asked means that the server was stopped and did not crash. The requests that the
// server has not answered are sent to the next server, or answered with an error.
func (m *Mux) Detach(incarnation int64, asked bool) {
	m.lock()
	b := m.server
	m.unlock()
	if b == nil || b.incarnation != incarnation {
		return
	}
	lastWords := time.NewTimer(streamPatience)
	defer lastWords.Stop()
	select {
	case <-b.read:
	case <-b.gone:
	case <-lastWords.C:
	}
	m.lock()
	defer m.unlock()
	if m.server == b {
		m.detach(b, asked)
	}
}

func (m *Mux) detach(b *backend, asked bool) {
	why := "a stop was requested"
	if !asked {
		why = "the server crashed"
	}
	if b.fault != "" {
		asked, why = false, b.faultMessage
	}
	if !m.holding {
		m.reason = why
	}
	m.documents.Detach()
	m.endProgress(b)
	m.suspect(b, asked)
	m.settleOwed(b, asked)
	for _, s := range m.sessions {
		maps.DeleteFunc(s.asked, func(_ int64, q *serverRequest) bool { return q.id != nil })
	}
	for _, p := range m.published {
		p.stale = true
	}
	for _, r := range m.registrations {
		r.stale = true
	}
	m.server, m.holding = nil, false
	clear(m.timedOut)
	b.release()
	m.urgent = true
}

// settleOwed settles the requests that a lost server has not answered, in order of arrival.
func (m *Mux) settleOwed(b *backend, asked bool) {
	owed := slices.SortedFunc(maps.Values(b.pending), func(one, other *request) int { return cmp.Compare(one.sequence, other.sequence) })
	fatal := map[string]bool{}
	for _, r := range owed {
		m.landed(r)
		if r.own != ofClient {
			m.forget(r)
			continue
		}
		if !asked && r.class != read && len(r.uri) > 0 {
			fatal[poisonKey(r)] = true
		}
		m.interrupted(r, asked)
	}
	if !asked {
		m.fatalLast = fatal
	}
}

// release ends the goroutines of a lost server.
func (b *backend) release() {
	close(b.gone)
	b.out.abort()
	_ = b.stdin.Close()
	if c, ok := b.stdout.(io.Closer); ok {
		_ = c.Close()
	}
}

// interrupted handles a request that has no answer because its server exited or the multiplexer withdrew the request. It queues the request for the next
// server if the request may be sent again, and fails it otherwise. The caller has already removed the request from its list.
func (m *Mux) interrupted(r *request, asked bool) {
	r.withdrawn = false
	switch {
	case m.quitting:
		m.fail(r, codeRequestFailed, m.reason, &detail{Reason: "Quit", Incarnation: m.incarnation, Outcome: outcome(r)})
	case r.cancelled:
		m.fail(r, codeRequestCancelled, "canceled", nil)
	case !r.late.IsZero():
		m.timeOut(r)
	case r.class == bound, r.class == read && r.streamed:
		m.fail(r, codeContentModified, "the language server restarted, and the request refers to data of the previous incarnation; send the request again", nil)
	case r.class != read:
		m.interruptedEffect(r, asked)
	default:
		m.interruptedRead(r, asked)
	}
}

func (m *Mux) interruptedEffect(r *request, asked bool) {
	if key := poisonKey(r); !asked && len(r.uri) > 0 && m.fatalLast[key] {
		m.quarantine[key] = m.now().Add(quarantineTime)
	}
	m.fail(r, codeRequestFailed, "the language server exited during this request; it is unknown whether the request took effect", &detail{
		Reason: "Restarting", Incarnation: m.incarnation, Outcome: outcome(r),
	})
}

func (m *Mux) interruptedRead(r *request, asked bool) {
	if !asked {
		r.crashes++
	}
	if r.crashes >= requestCrashes {
		m.quarantine[poisonKey(r)] = m.now().Add(quarantineTime)
		m.refusePoison(r)
		return
	}
	if m.config.Hold.Timeout < 0 {
		m.failWaiting(r, true)
		return
	}
	m.wait(r, true)
	slices.SortStableFunc(m.waiting, func(one, other *request) int { return cmp.Compare(one.sequence, other.sequence) })
}

// outcome returns "unknown" for a request that may have an effect and was sent to a server.
func outcome(r *request) string {
	if !r.sent.IsZero() && (r.class == effect || r.class == unknown) {
		return "unknown"
	}
	return ""
}

// suspect counts for each document the consecutive crashes at which the document was open, and quarantines the document after poisonCrashes of them. A
// requested stop clears all counts and quarantines.
func (m *Mux) suspect(b *backend, asked bool) {
	switch {
	case asked:
		clear(m.quarantine)
		clear(m.poison)
		clear(m.crashesWith)
		clear(m.fatalLast)
	case !b.ready:
	case m.now().Sub(b.readyAt) > soon:
		clear(m.crashesWith)
	default:
		for _, uri := range m.documents.URIs() {
			if m.isPoisoned(uri) {
				continue
			}
			if m.crashesWith[uri]++; m.crashesWith[uri] >= poisonCrashes {
				m.poison[uri] = m.now().Add(quarantineTime)
				delete(m.crashesWith, uri)
				m.log(fmt.Sprintf("%s is no longer sent to the language server, which crashed %d times while the document was open", uri, poisonCrashes))
			}
		}
	}
}

func poisonKey(r *request) string { return r.method + "\x00" + string(r.uri) }

func (m *Mux) isPoisoned(uri string) bool {
	_, poisoned := m.poison[uri]
	return poisoned
}

// refusePoison reports whether a request or its document is quarantined, and fails such a request.
func (m *Mux) refusePoison(r *request) bool {
	if len(m.quarantine) == 0 && len(m.poison) == 0 {
		return false
	}
	until, ok := m.poison[string(r.uri)]
	if !ok {
		until, ok = m.quarantine[poisonKey(r)]
	}
	if !ok {
		return false
	}
	m.fail(r, codeRequestFailed, "the language server crashed repeatedly during this request; such requests are rejected for up to 10 minutes, or until the server is restarted on request",
		&detail{Reason: "Quarantined", Incarnation: m.incarnation, RetryAfterMs: max(until.Sub(m.now()).Milliseconds(), 1000)})
	return true
}
