// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import "context"

// canPreStart reports whether the next incarnation of an object may be pre-started: its kind has nothing else to record, and its backend reports what an
// incarnation was started with.
func (r *Reconciler) canPreStart(v *scope) bool {
	return v.traits.PreStart && v.runtime.Capabilities().KeepsOrigin
}

// preStart starts the reserved incarnation. It writes nothing: one later write records the result once the process runs, and if this manager is lost
// before that, the next one finds the process. The object must be as this manager last wrote it, or be confirmed to be the newest.
func (r *Reconciler) preStart(ctx context.Context, v *scope) error {
	if !v.step.PreStart {
		return nil
	}
	// The API server deletes an object whose finalizer was added while it was handling the deletion. Before the first start nothing may have been written since
	// the claim, so only a read shows that.
	if v.base.GetProcessStatus().Incarnation == 0 || !r.stateCache.writes.IsLast(v.base) {
		if err := r.confirm(ctx, v); err != nil {
			return err
		}
	}
	r.measure(v)
	v.didPreStart = true
	return r.carryOut(ctx, v)
}
