// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"github.com/berth-dev/berth/controllers/consistency"
	"github.com/berth-dev/berth/controllers/process"
)

// memory is a cache. Correctness does not depend on it.
type memory struct {
	writes consistency.Writes
	// own contains the runs that this manager created most recently; seen records when the end of a run was first observed.
	own  process.Recent[bool]
	seen process.FirstObserved
}
