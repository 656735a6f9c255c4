// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/runtime"
)

// observe queries the runtime for the incarnations of the object. It does not wait for a process.
func (r *Reconciler) observe(ctx context.Context, v *scope) error {
	uid := v.object.GetUID()
	found, err := v.runtime.Observe(ctx, uid)
	var unavailable *runtime.UnavailableError
	if errors.As(err, &unavailable) && v.want == lifecycle.DesiredRunning && v.object.GetProcessStatus().Incarnation == 0 {
		v.unavailable = unavailable.Message // the record contains no incarnation, so the status can report what prevents a start
		return nil
	}
	if err != nil {
		if r.stateCache.recordFailure(uid, "") {
			r.Recorder.Eventf(v.object, nil, corev1.EventTypeWarning, v1alpha1.ReasonRuntimeUnavailable, "Observe", "%s", eventMessage(err))
		}
		return fmt.Errorf("query the runtime: %w", err)
	}
	v.readLogTail(ctx, found)
	v.found, v.observed.Incarnations = found, found
	for i := range found {
		if lifecycle.IsCurrent(v.reserves, v.object.GetProcessStatus(), found[i].Number) && found[i].Alive() {
			v.current = &found[i]
		}
	}
	v.orphan = v.current != nil && v.current.Adopted && v.traits.KeepAdopted
	return nil
}

// knows reports whether the backend knows an incarnation, alive or ended.
func (v *scope) knows(number int64) bool {
	return slices.ContainsFunc(v.found, func(found facts.Incarnation) bool { return found.Number == number })
}

// checkProgram checks whether the program of the current incarnation, which could not be executed, can be executed now. It returns nil if the backend reports
// no such failure, if the start is blocked, or if the backend cannot check the program.
func (v *scope) checkProgram() *lifecycle.ProgramCheck {
	inspection := v.runtime.Capabilities().Inspection
	if inspection == nil || v.start.Blocked != nil {
		return nil
	}
	for i := range v.found {
		failed := v.found[i].StartError
		if failed == nil || !lifecycle.CanHeal(failed.Reason) || !lifecycle.IsCurrent(v.reserves, v.object.GetProcessStatus(), v.found[i].Number) {
			continue
		}
		again, blocked := v.program(lifecycle.StartOf(v.object.GetProcessStatus(), &v.found[i]), v.found[i].Number)
		if blocked != nil || len(again.Command) == 0 {
			return nil
		}
		failure, known := inspection.CheckProgram(again)
		switch {
		case !known:
			return nil
		case failure != nil:
			return &lifecycle.ProgramCheck{Reason: failure.Reason}
		}
		return &lifecycle.ProgramCheck{}
	}
	return nil
}

// checkStart returns why the start of the next incarnation would fail, as far as the backend can check it; nil if no cause is known.
func (v *scope) checkStart(ctx context.Context) (*facts.StartError, error) {
	inspection := v.runtime.Capabilities().Inspection
	if inspection == nil || v.current == nil {
		return nil, nil // nothing can be checked
	}
	next, blocked := v.program(v.step.SessionStart, v.current.Number+1)
	if blocked != nil {
		return &facts.StartError{Reason: blocked.Reason, Message: blocked.Message}, nil
	}
	var refused *facts.StartError
	switch err := inspection.Check(ctx, next); {
	case errors.As(err, &refused):
		return refused, nil
	case err != nil && !errors.Is(err, errors.ErrUnsupported):
		return nil, fmt.Errorf("check whether the process can be started again: %w", err)
	case len(next.Command) == 0:
		return nil, nil // the program is the one of an image
	}
	failure, _ := inspection.CheckProgram(next)
	return failure, nil
}

// programRuns reports whether the program of the current incarnation is running, and not only other processes of its tree.
func (v *scope) programRuns() bool {
	return v.current != nil && v.current.Phase == facts.Running && v.current.LeaderExit == nil
}

// observeKind lets the kind add what it knows about the current incarnation, if its program is running. If it is not, the kind has nothing to add to the facts;
// its status then follows from the decision (see derive).
func (r *Reconciler) observeKind(ctx context.Context, v *scope) error {
	switch {
	case v.current != nil && v.current.LeaderExit != nil:
		// The backend is terminating the other processes of the tree, so the object is no longer usable.
		notReady := false
		v.start.Probed, v.observed.Ready = true, &notReady
		v.observed.NotReady = "The program has exited; stopping the processes that it left behind."
	case v.programRuns():
		retry, err := r.Kind.ObserveRunning(ctx, v.object, *v.current, &v.observed)
		if err != nil && v.want == lifecycle.DesiredRunning && v.object.GetProcessStatus().Stopping == nil {
			return fmt.Errorf("inspect the process: %w", err)
		}
		if err != nil {
			// Do not return the error: it must not delay the stop that is due or in progress.
			ctrl.LoggerFrom(ctx).Error(err, "Cannot inspect a process that is being stopped")
		}
		v.retries = append(v.retries, retry)
	}
	return nil
}
