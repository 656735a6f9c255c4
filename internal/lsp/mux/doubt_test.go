// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
)

func TestInquiry_DoubtsUnlessDiagnosticsAreOfTheText(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	before := func(d time.Duration) time.Time { return now.Add(-d) }
	version := func(n int64) *int64 { return &n }
	quietFor := func(d time.Duration, more ...func(*evidence)) evidence {
		e := evidence{published: &publication{version: version(7), at: before(d)}, served: 7, now: now, active: before(d), toldAt: before(d)}
		for _, change := range more {
			change(&e)
		}
		return e
	}
	for name, row := range map[string]struct {
		inquiry  inquiry
		evidence evidence
		settled  bool
		final    bool
	}{
		"no diagnostics":                              {evidence: quietFor(time.Hour, func(e *evidence) { e.published = nil })},
		"diagnostics of an earlier server":            {evidence: quietFor(time.Hour, func(e *evidence) { e.published.stale = true })},
		"diagnostics of an older text":                {evidence: quietFor(time.Hour, func(e *evidence) { e.served = 8 })},
		"the server is quiet":                         {evidence: quietFor(quiet), settled: true, final: true},
		"the server is not quiet yet":                 {evidence: quietFor(quiet - 1)},
		"the server works":                            {evidence: quietFor(time.Hour, func(e *evidence) { e.tasks = 1 })},
		"the server reports that it works":            {evidence: quietFor(time.Hour, func(e *evidence) { e.busy = true })},
		"no version, not quiet yet":                   {evidence: quietFor(quiet-1, func(e *evidence) { e.published.version = nil })},
		"no version will come":                        {evidence: quietFor(quiet, func(e *evidence) { e.published.version = nil }), final: true},
		"a version may come":                          {evidence: quietFor(time.Hour, func(e *evidence) { e.published.version, e.versions = nil, true })},
		"others changed":                              {evidence: quietFor(quiet, func(e *evidence) { e.published.at = before(time.Hour) })},
		"others changed long ago":                     {evidence: quietFor(quietAfterOthers, func(e *evidence) { e.published.at = before(time.Hour) }), settled: true, final: true},
		"requested, and not answered":                 {evidence: quietFor(time.Hour, func(e *evidence) { e.requested, e.owed = true, true })},
		"requested, and answered":                     {evidence: quietFor(0, func(e *evidence) { e.requested = true }), settled: true, final: true},
		"published by the server, others are owed":    {evidence: quietFor(quiet, func(e *evidence) { e.owed = true }), settled: true, final: true},
		"by gopls, which publishes before it answers": {inquiry: inquiry{method: byGopls}, evidence: quietFor(0), settled: true, final: true},
		"seen earlier for this text":                  {inquiry: inquiry{seen: &publication{version: version(6), at: now}}, evidence: quietFor(quiet, func(e *evidence) { e.published.version = version(5) }), settled: true, final: true},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			reason, final := row.inquiry.doubt(row.evidence)
			g.Expect(reason).To(Or(BeEmpty(), HavePrefix("the server "), HavePrefix("other documents")))
			g.Expect([]bool{reason == "", final}).To(Equal([]bool{row.settled, row.final}), reason)
		})
	}
}
