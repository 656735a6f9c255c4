// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import "context"

// canPreStart reports whether the next incarnation of an object may be pre-started: its kind has nothing else to record, and its backend reports what an
// incarnation was started with.
func (r *Reconciler) canPreStart(v *scope) bool {
	return v.traits.PreStart && v.runtime.Capabilities().KeepsOrigin
}

// preStart starts the reserved incarnation before the start is recorded. A later write records the incarnation and its process together. If this manager
// crashes before that write, the next manager finds the process. Before the start, preStart confirms that the object is unchanged. It omits this check if
// this manager was the last to write the object and the start is not the first one.
func (r *Reconciler) preStart(ctx context.Context, v *scope) error {
	if !v.step.PreStart {
		return nil
	}
	// A finalizer that is added while the API server handles the deletion of the object does not prevent that deletion. Before the first start, the last write
	// may be that of the finalizer, so only a read shows whether the object still exists.
	if v.base.GetProcessStatus().Incarnation == 0 || !r.stateCache.writes.IsLast(v.base) {
		if err := r.confirm(ctx, v); err != nil {
			return err
		}
	}
	r.measure(v)
	v.didPreStart = true
	return r.carryOut(ctx, v)
}
