// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package strategyrun

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/lifecycle"
)

// planOf returns the reference to the plan that created the run; nil if no plan did.
func planOf(run *v1alpha1.StrategyRun) *metav1.OwnerReference {
	if owner := metav1.GetControllerOf(run); owner != nil && owner.Kind == "Plan" {
		return owner
	}
	return nil
}

// restored returns why the run must not be started if it is a copy of a run that may have been executed already; nil if it is not a copy. A run of a plan has no
// mark of its own, which saves a write for each run, because its plan lists it.
func (k *Kind) restored(ctx context.Context, run *v1alpha1.StrategyRun) (*lifecycle.Blocked, error) {
	owner := planOf(run)
	if owner == nil {
		if message := process.RestoredFrom("run", run); message != "" {
			return &lifecycle.Blocked{Reason: v1alpha1.ReasonRestored, Message: message}, nil
		}
		return nil, nil
	}
	if run.Status.Process != nil {
		return nil, nil // it was started here
	}
	// The cache may be older than the creation of the run, so only the API server can confirm that the plan does not expect the run.
	for _, reader := range []client.Reader{k.client, k.reader} {
		plan := &v1alpha1.Plan{}
		err := reader.Get(ctx, types.NamespacedName{Namespace: run.Namespace, Name: owner.Name}, plan)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("read the plan of the run: %w", err)
		}
		if !apierrors.IsNotFound(err) && expects(plan, owner.UID, run) {
			return nil, nil
		}
	}
	return &lifecycle.Blocked{Reason: v1alpha1.ReasonRestored, Message: fmt.Sprintf("Plan %s with the UID %s, which created this run, does not exist or "+
		"has recorded another run with this name, so this run is a copy, for example from a backup. Delete it.", owner.Name, owner.UID)}, nil
}

// expects reports whether a run can be one that the plan with the UID has created and that has not ended.
func expects(plan *v1alpha1.Plan, uid types.UID, run *v1alpha1.StrategyRun) bool {
	if plan.UID != uid {
		return false
	}
	for i := range plan.Status.Runs {
		if listed := &plan.Status.Runs[i]; listed.Name == run.Name {
			return listed.UID == "" || listed.UID == run.UID
		}
	}
	for i := range plan.Status.Results {
		if plan.Status.Results[i].Run == run.Name {
			return false
		}
	}
	return true // a run of an earlier attempt, which the plan ends
}
