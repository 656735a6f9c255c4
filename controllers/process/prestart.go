// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import "context"

// reserves reports whether the next incarnation of an object is reserved, so that it may be pre-started: the backend starts it quickly and reports what it was
// started with, and the process spec is part of the object. A spec that comes from another object must be recorded before the start, because that object may
// change.
func reserves(v *scope) bool {
	backend := v.runtime.Capabilities()
	return v.resolved == nil && backend.KeepsOrigin && !backend.SlowStart
}

// preStart starts the reserved incarnation before the start is recorded. A later write records the incarnation and its process together. If this manager
// crashes before that write, the next manager finds the process. Before the start, preStart confirms that the object is unchanged. It omits this check if
// this manager was the last to write the object and the start is not the first one.
func (r *Reconciler) preStart(ctx context.Context, v *scope) error {
	if !v.step.PreStart {
		return nil
	}
	// A finalizer that is added while the API server handles the deletion of the object does not prevent that deletion (kubernetes/kubernetes#77988). Before the
	// first start, the last write may be that of the finalizer, so a read checks whether the object still exists. The API server may also delete the object after
	// that read; see vanished.go.
	if v.base.GetProcessStatus().Incarnation == 0 || !r.stateCache.writes.IsLast(v.base) {
		if err := r.confirm(ctx, v); err != nil {
			return err
		}
	}
	r.beforeAction(ctx, v)
	r.measure(v)
	v.didPreStart = true
	return r.carryOut(ctx, v)
}
