// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/shim"
)

// before returns the exit of the incarnation that precedes p. If an earlier attempt to start p had no effect, before reads the exit from the record of that
// attempt.
func before(f *observation, p runtime.Process) *shim.Before {
	switch {
	case !f.recorded:
		return nil
	case f.record.Incarnation == p.Incarnation:
		return f.record.Before
	case f.end != nil && f.end.Exit != nil:
		return &shim.Before{Incarnation: f.record.Incarnation, Exit: *f.end.Exit}
	}
	return nil
}

func endedOf(before *shim.Before) *facts.Ended {
	if before == nil {
		return nil
	}
	return &facts.Ended{Number: before.Incarnation, Exit: before.Exit}
}

// nothing() handles a record whose start had no effect. It changes the observation to the previous incarnation, which has exited, or to no incarnation if there
// was none before.
func (f *observation) nothing() {
	before := f.record.Before
	if f.exists = before != nil; f.exists {
		f.incarnation.Number, f.incarnation.Before, f.incarnation.Origin = before.Incarnation, nil, facts.Origin{}
		f.incarnation.Phase, f.incarnation.Exit = facts.Exited, &before.Exit
	}
}
