// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package mux

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/internal/lsp"
)

func TestHealth_ExamineFindsWhatIsToBeDone(t *testing.T) {
	config := lsp.Config{
		StartupTimeout: time.Minute, Limits: lsp.Limits{RequestTimeout: time.Minute},
		Health: lsp.Health{PingAfter: 10 * time.Second, HangTimeout: 30 * time.Second, Canary: lsp.Canary{Method: "workspace/symbol", Period: time.Minute}},
	}
	start := time.Unix(1_700_000_000, 0)
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	ready := health{attachedAt: start, readyAt: at(1), workAt: at(1)}
	indexed := func(change func(*health)) health {
		h := ready
		h.indexed, h.canaryAt = true, at(1000)
		if change != nil {
			change(&h)
		}
		return h
	}
	with := func(change func(*health)) health { h := ready; change(&h); return h }
	hung := finding{fault: lsp.ReasonHung}
	for name, row := range map[string]struct {
		health health
		vitals vitals
		want   finding
	}{
		"no answer to initialize yet":                {health{attachedAt: start}, vitals{now: at(59)}, finding{}},
		"no answer to initialize":                    {health{attachedAt: start}, vitals{now: at(60)}, hung},
		"starts slowly but sends messages":           {health{attachedAt: start}, vitals{now: at(300), heard: at(290)}, finding{}},
		"sends messages but never starts":            {health{attachedAt: start}, vitals{now: at(360), heard: at(359)}, hung},
		"output ended just now":                      {with(func(h *health) { h.endedAt, h.responsive = at(5), true }), vitals{now: at(7), heard: at(5)}, finding{indexed: true, canary: true}},
		"output ended":                               {with(func(h *health) { h.endedAt = at(5) }), vitals{now: at(8)}, finding{fault: lsp.ReasonProtocolError}},
		"does not read":                              {with(func(h *health) { h.overflow = true }), vitals{now: at(2)}, hung},
		"three requests timed out":                   {with(func(h *health) { h.timedOut = map[string]bool{"a": true, "b": true, "c": true} }), vitals{now: at(2)}, hung},
		"two requests timed out":                     {with(func(h *health) { h.timedOut = map[string]bool{"a": true, "b": true} }), vitals{now: at(1)}, finding{}},
		"reads its workspace, quiet for a moment":    {with(func(h *health) { h.worked = true }), vitals{now: at(1), heard: at(1)}, finding{}},
		"has read its workspace":                     {with(func(h *health) { h.worked = true }), vitals{now: at(2), heard: at(2)}, finding{indexed: true, canary: true}},
		"a task is in progress":                      {with(func(h *health) { h.worked = true }), vitals{now: at(20), heard: at(20), tasks: 1}, finding{}},
		"a task never ends":                          {with(func(h *health) { h.worked = true }), vitals{now: at(61), heard: at(61), tasks: 1}, finding{indexed: true, outdated: true, canary: true}},
		"busy by its own status":                     {with(func(h *health) { h.worked, h.busyStatus = true, true }), vitals{now: at(20), heard: at(20)}, finding{}},
		"reports no progress, has answered the ping": {with(func(h *health) { h.responsive = true }), vitals{now: at(2), heard: at(2)}, finding{indexed: true, canary: true}},
		"reports no progress, has answered nothing":  {ready, vitals{now: at(10), heard: at(10)}, finding{}},
		"reports no progress for long":               {ready, vitals{now: at(11), heard: at(11)}, finding{indexed: true, canary: true}},
		"silent for a moment":                        {indexed(nil), vitals{now: at(20), heard: at(11), owedSince: at(20)}, finding{}},
		"silent, is pinged":                          {indexed(nil), vitals{now: at(20), heard: at(10), owedSince: at(20)}, finding{ping: true}},
		"silent, was pinged":                         {indexed(func(h *health) { h.pinged = true }), vitals{now: at(39), heard: at(10), owedSince: at(20)}, finding{}},
		"silent for too long":                        {indexed(func(h *health) { h.pinged = true }), vitals{now: at(40), heard: at(10), owedSince: at(20)}, hung},
		"silent because the machine was suspended":   {indexed(nil), vitals{now: at(400), heard: at(10), owedSince: at(400)}, finding{ping: true, outdated: true}},
		"silent but uses CPU": {indexed(func(h *health) {
			h.pinged, h.silence = true, silence{since: at(10), measured: at(20), last: at(38), newest: time.Second}
		}), vitals{now: at(40), heard: at(10), owedSince: at(20)}, finding{}},
		"silent and uses CPU for too long": {indexed(func(h *health) {
			h.pinged, h.silence = true, silence{since: at(10), measured: at(20), last: at(159), newest: 5 * time.Second}
		}), vitals{now: at(160), heard: at(10), owedSince: at(20)}, finding{fault: lsp.ReasonHung, outdated: true}},
		"used CPU during an earlier silence": {indexed(func(h *health) {
			h.pinged, h.silence = true, silence{since: at(5), measured: at(6), last: at(9), newest: time.Second}
		}), vitals{now: at(40), heard: at(10), owedSince: at(20)}, hung},
		"the canary request is due":                     {indexed(func(h *health) { h.canaryAt = at(20) }), vitals{now: at(20), heard: at(20)}, finding{canary: true}},
		"the canary request is in flight":               {indexed(func(h *health) { h.canaryAt = at(20) }), vitals{now: at(25), heard: at(25), canarySent: at(20)}, finding{}},
		"the canary request is late":                    {indexed(func(h *health) { h.canaryAt = at(20) }), vitals{now: at(80), heard: at(80), canarySent: at(20)}, finding{canaryLate: true, outdated: true}},
		"diagnostics of the earlier server are expired": {indexed(nil), vitals{now: at(61), heard: at(61)}, finding{outdated: true}},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			h := row.health
			found := h.examine(row.vitals, &config)
			if found.fault != "" {
				g.Expect(found.message).NotTo(BeEmpty())
			}
			found.message = ""
			g.Expect(found).To(Equal(row.want))
		})
	}
}

func TestHealth_CanaryFailsThreeTimesInARow(t *testing.T) {
	g := NewWithT(t)
	h := health{}
	g.Expect(h.canaryAnswered("x", "null")).To(BeFalse())
	g.Expect(h.canaryAnswered("x", "null")).To(BeFalse())
	g.Expect(h.canaryAnswered("x", "")).To(BeFalse())
	g.Expect(h.canaryAnswered("x", "null")).To(BeFalse())
	g.Expect(h.canaryAnswered("x", "null")).To(BeFalse())
	g.Expect(h.canaryAnswered("x", "null")).To(BeTrue())
	g.Expect(h.canaryMessage).To(ContainSubstring("null"))
}
