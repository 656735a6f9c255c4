// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berth-dev/berth/internal/lsp/document"
)

// quarantineTime is how long documents and requests that were present at repeated crashes are withheld from servers.
const quarantineTime = 10 * time.Minute

// quarantine holds the documents and requests that are withheld from servers, because servers crashed while processing them.
type quarantine struct {
	*suspects
	requests map[string]time.Time // when the quarantine of a request ends, by poisonKey
	// fatal are the requests that must not be sent again and were in flight at the last crash.
	fatal map[string]bool
}

func newQuarantine() quarantine {
	return quarantine{suspects: newSuspects(), requests: map[string]time.Time{}}
}

func poisonKey(r *request) string { return r.method + "\x00" + string(r.uri) }

// reset ends all withholding. It returns the documents that were withheld because they have caused a crash.
func (q *quarantine) reset() []string {
	alone := q.alone()
	*q = newQuarantine()
	return alone
}

// isEmpty reports whether nothing is withheld.
func (q *quarantine) isEmpty() bool { return len(q.requests)+len(q.withheld) == 0 }

func (q *quarantine) withholds(uri string) bool { return q.withheld[document.Key(uri)] != nil }

// add withholds requests like r.
func (q *quarantine) add(r *request, now time.Time) {
	q.requests[poisonKey(r)] = now.Add(quarantineTime)
}

// crashedWith records the requests that were in flight at a crash. It withholds requests that must not be sent again if such a request was also in flight at
// the previous crash.
func (q *quarantine) crashedWith(owed []*request, now time.Time) {
	fatal := map[string]bool{}
	for _, r := range owed {
		if r.own != ofClient || r.class == read || len(r.uri) == 0 {
			continue
		}
		key := poisonKey(r)
		fatal[key] = true
		if q.fatal[key] && r.class != bound && !r.cancelled && r.late.IsZero() {
			q.add(r, now)
		}
	}
	q.fatal = fatal
}

// lift ends the quarantine of requests whose time has elapsed, and reports whether there were any.
func (q *quarantine) lift(now time.Time) (lifted bool) {
	for key, until := range q.requests {
		if !now.Before(until) {
			delete(q.requests, key)
			lifted = true
		}
	}
	return lifted
}

// refuses returns why a request must not be sent, and for how long; an empty string if it may be sent.
func (q *quarantine) refuses(r *request, now time.Time) (why string, remaining time.Duration) {
	if q.isEmpty() {
		return "", 0
	}
	if v := q.withheld[document.Key(string(r.uri))]; v != nil {
		until := v.until
		if !v.alone {
			until = now.Add(soon)
		}
		return "the language server crashed repeatedly while this document was open; the document is withheld until its text changes, or for up to 10 minutes", until.Sub(now)
	}
	if until, ok := q.requests[poisonKey(r)]; ok {
		return "the language server crashed repeatedly during this request; such requests are rejected for up to 10 minutes, or until the server is restarted on request", until.Sub(now)
	}
	return "", 0
}

// problem describes what is withheld; empty if nothing is.
func (q *quarantine) problem() string {
	if alone := q.alone(); len(alone) > 0 {
		return fmt.Sprintf("%s is not sent to the language server, because its text makes the server crash; "+
			"change the text, or restart the server, to send the document again", alone[0])
	}
	var keys []string
	for key := range q.requests {
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return ""
	}
	method, uri, _ := strings.Cut(slices.Min(keys), "\x00")
	return fmt.Sprintf("%s of %q is not sent to the language server, because it was in flight during repeated crashes; restart the server to send the request again", method, uri)
}
