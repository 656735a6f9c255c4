// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/controllers/process"
)

// waiting are the plans that wait for approval, for the metric. A deleted plan is known only by its name.
var waiting = &waitingPlans{of: map[types.NamespacedName]bool{}}

type waitingPlans struct {
	mu sync.Mutex
	of map[types.NamespacedName]bool
}

// set records whether a plan waits.
func (w *waitingPlans) set(plan types.NamespacedName, waits bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if waits {
		w.of[plan] = true
	} else {
		delete(w.of, plan)
	}
	process.Waiting.WithLabelValues("plans").Set(float64(len(w.of)))
}
