// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/runtime"
)

// Place implements runtime.ResultStore. The paths do not exist on disk.
func (r *Runtime) Place(uid types.UID) runtime.ResultPaths {
	dir := "/fake/" + string(uid)
	return runtime.ResultPaths{File: dir + "/result", Artifacts: dir + "/artifacts", Inputs: dir + "/inputs"}
}

// Results implements runtime.ResultStore. It returns what Leave set, until Forget.
func (r *Runtime) Results(uid types.UID) (results runtime.Results) {
	r.with(uid, func(w *workload) { results = w.results })
	return results
}

// Leave sets the results of the started program of a UID.
func (r *Runtime) Leave(uid types.UID, results runtime.Results) {
	r.with(uid, func(w *workload) { w.results = results })
}
