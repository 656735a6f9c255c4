// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import "context"

// reserves says whether the next incarnation of an object may be started ahead: its kind has nothing else to record, and its backend tells whoever
// finds it with what it was started.
func (r *Reconciler) reserves(v *visit) bool {
	return v.traits.PreStart && v.runtime.Capabilities().KeepsOrigin
}

// startAhead makes a start whose number is reserved. Nothing is written: what came of it is told in one write when it runs, and a manager that is
// lost in between is followed by one that finds it. The object is as we have left it, or is confirmed to be the newest.
func (r *Reconciler) startAhead(ctx context.Context, v *visit) error {
	if !v.step.Ahead {
		return nil
	}
	if !r.memory.writes.IsLast(v.base) {
		if err := r.confirm(ctx, v); err != nil {
			return err
		}
	}
	r.measure(v)
	v.ahead = true
	return r.carryOut(ctx, v)
}
