// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/runtime"
)

// Place implements runtime.Keeper. Nothing is there on any disk.
func (r *Runtime) Place(uid types.UID) runtime.Place {
	dir := "/fake/" + string(uid)
	return runtime.Place{File: dir + "/result", Artifacts: dir + "/artifacts", Inputs: dir + "/inputs"}
}

// Results implements runtime.Keeper: what Leave has said, until the UID is forgotten.
func (r *Runtime) Results(uid types.UID) runtime.Results {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w := r.workloads[uid]; w != nil {
		return w.results
	}
	return runtime.Results{}
}

// Leave makes the program of a UID, which was started, leave results.
func (r *Runtime) Leave(uid types.UID, results runtime.Results) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w := r.workloads[uid]; w != nil {
		w.results = results
	}
}
