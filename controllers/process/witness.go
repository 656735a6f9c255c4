// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"

	"github.com/berth-dev/berth/internal/lifecycle"
)

// Witness is implemented by kinds beside whose processes something else follows the status, such as a proxy in front of them.
type Witness interface {
	// Decided is called once per reconcile, with the object as the API server has acknowledged it and before the action of the step is done. Where
	// nothing had to be written the object may be one that was true a moment ago.
	Decided(ctx context.Context, object Object, step lifecycle.Step)
}

// witness tells a kind that wants to know what was decided.
func (r *Reconciler) witness(ctx context.Context, v *visit) error {
	if kind, ok := r.Kind.(Witness); ok {
		kind.Decided(ctx, v.object, v.step)
	}
	return nil
}
