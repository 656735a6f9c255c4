// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"fmt"
	"maps"
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
	if len(q.requests) == 0 {
		return ""
	}
	method, uri, _ := strings.Cut(slices.Min(slices.Collect(maps.Keys(q.requests))), "\x00")
	return fmt.Sprintf("%s of %q is not sent to the language server, because it was in flight during repeated crashes; restart the server to send the request again", method, uri)
}

// suspects determines which document makes the language server crash, and which documents are therefore withheld from the server. A document is suspected while
// its text is new: from when the server receives the text until the server has had it for the time soon. After poisonCrashes consecutive crashes, half of the
// suspected documents are withheld. The next crash, or its absence, shows in which half the cause is, and so on, until one document remains. Keys are those of
// document.Key.
type suspects struct {
	fresh    map[string]time.Time // the documents with a new text, and since when the server has the text
	crashes  map[string]int       // consecutive crashes while the text was new
	withheld map[string]*verdict
	tried    time.Time // when the server received the documents that are now being tried
}

// verdict is why and how long a document is withheld.
type verdict struct {
	since   time.Time
	until   time.Time
	alone   bool // the server crashed while this document was the only suspected one; otherwise the document is one of several
	changed bool // the text has changed since
}

func newSuspects() *suspects {
	return &suspects{fresh: map[string]time.Time{}, crashes: map[string]int{}, withheld: map[string]*verdict{}}
}

// changed records that a document has a new text.
func (s *suspects) changed(key string, now time.Time) {
	if v := s.withheld[key]; v != nil {
		v.changed = true
		return
	}
	s.fresh[key] = now
}

// closed forgets a document.
func (s *suspects) closed(key string) {
	delete(s.fresh, key)
	delete(s.crashes, key)
	delete(s.withheld, key)
}

// started records that a server has received all documents that are not withheld.
func (s *suspects) started(now time.Time) {
	s.tried = now
	for key := range s.fresh {
		s.fresh[key] = now
	}
}

// crashed records a crash. It returns the document that has caused it, or an empty string if the cause is not known yet.
func (s *suspects) crashed(now time.Time) (cause string) {
	s.trust(now)
	often := s.count()
	if len(often) == 0 {
		return ""
	}
	for key, v := range s.withheld {
		if !v.alone { // the server has crashed without it
			delete(s.withheld, key)
			s.fresh[key] = now
			s.crashes[key] = 0
		}
	}
	slices.Sort(often)
	half := often[:(len(often)+1)/2]
	for _, key := range half {
		s.withheld[key] = &verdict{since: now, until: now.Add(quarantineTime), alone: len(often) == 1}
		delete(s.fresh, key)
	}
	if len(often) == 1 {
		return often[0]
	}
	return ""
}

// count adds the crash to the documents with a new text, and returns those with enough crashes. While some documents are about to have enough, the others do not
// count, so that the search ends.
func (s *suspects) count() (often []string) {
	prime := slices.ContainsFunc(slices.Collect(maps.Keys(s.fresh)), func(key string) bool { return s.crashes[key] >= poisonCrashes-1 })
	for key := range s.fresh {
		if prime && s.crashes[key] < poisonCrashes-1 {
			continue
		}
		if s.crashes[key]++; s.crashes[key] >= poisonCrashes {
			often = append(often, key)
		}
	}
	return often
}

// trust clears the documents whose text the server has had for long enough.
func (s *suspects) trust(now time.Time) {
	for key, since := range s.fresh {
		if now.Sub(since) >= soon {
			delete(s.fresh, key)
			delete(s.crashes, key)
		}
	}
}

// due returns the documents whose time is up, or whose text has changed. They are no longer withheld.
func (s *suspects) due(now time.Time) []string {
	var keys []string
	for key, v := range s.withheld {
		// Every change of a text that still crashes the server causes another crash, so the changes of some time are tried together.
		if !now.Before(v.until) || v.changed && now.Sub(v.since) >= soon {
			keys = append(keys, key)
		}
	}
	return s.release(keys, now)
}

// next returns the documents that a running server receives next, because it has run with the others for long enough. They are no longer withheld.
func (s *suspects) next(now time.Time) []string {
	s.trust(now)
	if now.Sub(s.tried) < soon {
		return nil
	}
	var keys []string
	for key, v := range s.withheld {
		if !v.alone {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return s.release(keys[:(len(keys)+1)/2], now)
}

// release makes documents suspects again, which one more crash suffices to withhold.
func (s *suspects) release(keys []string, now time.Time) []string {
	if len(keys) > 0 {
		s.tried = now
	}
	for _, key := range keys {
		delete(s.withheld, key)
		s.fresh[key], s.crashes[key] = now, poisonCrashes-1
	}
	return keys
}

// alone returns the documents that are withheld because they have caused a crash, sorted.
func (s *suspects) alone() []string {
	keys := slices.Sorted(maps.Keys(s.withheld))
	return slices.DeleteFunc(keys, func(key string) bool { return !s.withheld[key].alone })
}
