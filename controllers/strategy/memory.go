// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package strategy

import (
	"sync"
	"time"

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

// dueTimes records when work that is batched for many events is due.
type dueTimes struct {
	mu    sync.Mutex
	times map[types.NamespacedName]time.Time
}

// due returns how long to wait. The first call returns pace; later calls return the time that is left, and 0 when the work is due.
func (d *dueTimes) due(key types.NamespacedName, now time.Time, pace time.Duration) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	at, known := d.times[key]
	switch {
	case !known:
		if d.times == nil {
			d.times = map[types.NamespacedName]time.Time{}
		}
		d.times[key] = now.Add(pace)
		return pace
	case now.Before(at):
		return at.Sub(now)
	default:
		delete(d.times, key)
		return 0
	}
}
