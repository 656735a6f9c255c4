// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
)

// before returns the exit of the incarnation that precedes p. If an earlier attempt to start p had no effect, before reads the exit from the record of that
// attempt.
func before(f *observation, p runtime.Process) *facts.Ended {
	switch {
	case !f.recorded:
		return nil
	case f.record.Incarnation == p.Incarnation:
		return f.record.Before
	case f.end != nil && f.end.Exit != nil:
		return &facts.Ended{Number: f.record.Incarnation, Exit: *f.end.Exit}
	}
	return nil
}

// nothing() handles a record whose start had no effect. It changes the observation to the previous incarnation, which has exited, or to no incarnation if there
// was none before.
func (f *observation) nothing() {
	before := f.record.Before
	if f.exists = before != nil; f.exists {
		f.incarnation.Number, f.incarnation.Before, f.incarnation.Origin = before.Number, nil, facts.Origin{}
		f.incarnation.Phase, f.incarnation.Exit = facts.Exited, &before.Exit
	}
}
