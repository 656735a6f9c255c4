// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/runtime"
)

// observe asks the runtime what is there. It only asks: nobody waits for a process here.
func (r *Reconciler) observe(ctx context.Context, v *visit) error {
	uid := v.object.GetUID()
	found, err := v.runtime.Observe(ctx, uid)
	if err != nil {
		if r.memory.complain(uid, "") {
			r.Recorder.Eventf(v.object, nil, corev1.EventTypeWarning, v1alpha1.ReasonRuntimeUnavailable, "Observe", "%s", truncate(err.Error()))
		}
		return fmt.Errorf("ask the runtime: %w", err)
	}
	v.found = found
	for i := range found {
		if lifecycle.IsCurrent(v.reserves, v.object.GetProcessStatus(), found[i].Number) && found[i].Alive() {
			v.current = &found[i]
		}
		if before := found[i].Before; before != nil && v.reserves {
			v.observed.Incarnations = append(v.observed.Incarnations,
				lifecycle.Incarnation{Number: before.Number, Phase: lifecycle.Exited, Exit: exitOf(&before.Exit)})
		}
		v.observed.Incarnations = append(v.observed.Incarnations, translate(found[i]))
	}
	if placed, is := r.Kind.(Placed); is && v.current != nil {
		v.orphan = placed.Orphans(v.object, *v.current)
	}
	return nil
}

// look has the kind add what it knows of the current incarnation.
func (r *Reconciler) look(ctx context.Context, v *visit) error {
	switch {
	case v.current == nil || v.current.Phase != runtime.Running:
		r.Kind.Rest(ctx, v.object)
	case v.current.LeaderExit != nil:
		// What is left of the tree is being ended by the backend: nobody can use it any more.
		notReady := false
		v.plan.Probed, v.observed.Ready = true, &notReady
		v.observed.NotReady = "the program has ended; what it left behind is being ended"
		r.Kind.Rest(ctx, v.object)
	default:
		retry, err := r.Kind.Look(ctx, v.object, *v.current, &v.observed)
		if err != nil && v.want == lifecycle.Run && v.object.GetProcessStatus().Stopping == nil {
			return fmt.Errorf("look at the process: %w", err)
		}
		if err != nil {
			// An end that is under way does not depend on it.
			ctrl.LoggerFrom(ctx).Error(err, "Looking at a process that is being ended")
		}
		v.retries = append(v.retries, retry)
	}
	return nil
}

// translate says in the words of the state machine what the runtime found.
func translate(found runtime.Incarnation) lifecycle.Incarnation {
	incarnation := lifecycle.Incarnation{
		Number:      found.Number,
		Phase:       lifecycle.Phase(found.Phase),
		Message:     truncate(found.Message),
		Containment: found.Containment,
		StopSent:    found.StopSent,
		Endable:     found.Endable,
		Origin:      lifecycle.Origin(found.Origin),
		Process: v1alpha1.ProcessReference{
			Incarnation: found.Number,
			Node:        found.Node,
			PID:         found.PID,
			StartTicks:  found.StartTicks,
			BootID:      found.BootID,
			ContainerID: found.ContainerID,
			PodName:     found.PodName,
			StartedAt:   microTime(found.StartedAt),
		},
	}
	incarnation.LeaderExit = exitOf(found.LeaderExit)
	if found.Exit != nil {
		incarnation.Exit = exitOf(found.Exit)
	}
	if found.StartError != nil {
		incarnation.Reason, incarnation.Message = found.StartError.Reason, truncate(found.StartError.Message)
	}
	return incarnation
}

func exitOf(exit *runtime.Exit) *lifecycle.Exit {
	if exit == nil {
		return nil
	}
	return &lifecycle.Exit{
		Known: exit.Known, Code: exit.Code, Signal: exit.Signal, FinishedAt: exit.FinishedAt.Truncate(time.Microsecond), Lost: exit.Lost, Message: exit.Message,
	}
}

func microTime(t time.Time) *metav1.MicroTime {
	if t.IsZero() {
		return nil
	}
	micro := metav1.NewMicroTime(t.Truncate(time.Microsecond))
	return &micro
}
