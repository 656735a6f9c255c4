// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
)

// gathering is how long the outcomes of runs are collected before they are written, provided that nothing else has to be written. Runs that end in quick
// succession then share one write.
const gathering = 600 * time.Millisecond

// gather postpones a write that would only record the end of some runs while others continue. No run is released before its outcome is recorded.
func (p *planner) gather() {
	left := p.mayGather()
	if left <= 0 {
		return
	}
	p.step.Status = *p.record.DeepCopy()
	p.step.Release = slices.DeleteFunc(p.step.Release, func(name string) bool {
		listed := p.listed(name)
		return listed != nil && listed.Outcome == ""
	})
	if p.step.Requeue == 0 || left < p.step.Requeue {
		p.step.Requeue = left
	}
}

// mayGather returns how long the write may be postponed. It returns 0 if there is anything else to write or to do.
func (p *planner) mayGather() time.Duration {
	if len(p.step.Create)+len(p.step.Cancel)+len(p.step.Events) > 0 || len(p.record.Runs) != len(p.status.Runs) {
		return 0
	}
	left, ended := gathering, false
	for i, is := range p.status.Runs {
		if is.Outcome == p.record.Runs[i].Outcome {
			continue
		}
		ended = true
		since := p.now.Sub(p.runs[is.Name].SeenAt)
		if since < 0 || is.Name != p.record.Runs[i].Name {
			return 0 // the clock was set back, or the list contains another run
		}
		left = min(left, gathering-since)
	}
	same := p.status.DeepCopy()
	same.Runs, same.Waiting, same.Conditions = p.record.Runs, p.record.Waiting, p.record.Conditions
	if !ended || !equality.Semantic.DeepEqual(*same, p.record) {
		return 0
	}
	return left
}
