// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package strategy

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/controllers/consistency"
	"github.com/berth-dev/berth/controllers/process"
)

// memory is a cache. Correctness does not depend on it.
type memory struct {
	writes consistency.Writes
	// gone contains the most recently released runs; seen records when the end of a run was first observed.
	gone process.Recent[bool]
	seen process.FirstObserved
}

func (m *memory) released(uid types.UID) { m.gone.Store(uid, true) }

func (m *memory) isReleased(uid types.UID) bool {
	gone, _ := m.gone.Get(uid)
	return gone
}
