// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/conditions"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
)

const (
	// endGrace is the maximum grace period of a process when berth up shuts down.
	endGrace = 10 * time.Second
	// killPatience is how long to wait for a killed process to disappear.
	killPatience = 10 * time.Second

	endPoll = 50 * time.Millisecond
	// endReason is the reason that is recorded in status.stopping.
	endReason = v1alpha1.ReasonStopped
)

// processStopper stops all running processes after the manager has shut down.
type processStopper struct {
	api   client.Client // nil: the stops are not recorded
	on    *runtime.Registry
	clock clock.WithTicker
	say   func(string, ...any)
}

// endAll stops all processes of the runtime in parallel, except adopted ones. It first records each stop as requested, so that the next manager starts the
// processes again without counting a failure.
func (e *processStopper) endAll(ctx context.Context) error {
	found, err := e.on.List(ctx)
	if err != nil {
		return fmt.Errorf("list running processes: %w", err)
	}
	found = stoppable(found)
	if len(found) == 0 {
		return nil
	}
	e.say("stopping %d processes", len(found))
	objects, err := e.objects(ctx)
	if err != nil {
		// The processes are stopped nevertheless; the next manager counts each stop as a crash.
		e.say("%v", err)
	}
	errs := make([]error, len(found))
	var all sync.WaitGroup
	for i, incarnation := range found {
		all.Go(func() { errs[i] = e.end(ctx, incarnation, objects[types.UID(incarnation.UID)]) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// stoppable returns the running processes, except adopted ones.
func stoppable(found []facts.Incarnation) []facts.Incarnation {
	return slices.DeleteFunc(found, func(i facts.Incarnation) bool { return !i.Alive() || i.Adopted })
}

func (e *processStopper) objects(ctx context.Context) (map[types.UID]process.Object, error) {
	byUID := map[types.UID]process.Object{}
	if e.api == nil {
		return byUID, nil
	}
	for _, kind := range kinds {
		objects, err := listAll(ctx, e.api, kind, "")
		if err != nil {
			return byUID, err
		}
		for _, object := range objects {
			byUID[object.GetUID()] = object
		}
	}
	return byUID, nil
}

func (e *processStopper) end(ctx context.Context, incarnation facts.Incarnation, object process.Object) error {
	grace := endGrace
	if object != nil {
		if seconds := object.GetProcessSpec().Process.Stop.GracePeriodSeconds; seconds != nil {
			grace = min(grace, time.Duration(*seconds)*time.Second)
		}
		number := incarnation.Number
		if _, behind := object.(*v1alpha1.LanguageServer); behind && object.GetProcessStatus().Process != nil {
			number = object.GetProcessStatus().Incarnation // the incarnation in the runtime is the multiplexer, which has its own numbers
		} else if behind {
			number = 0
		}
		if err := e.record(ctx, object, number, grace); err != nil {
			e.say("%s: cannot record the stop, so it counts as a crash: %v", incarnation.Name, err)
		}
	}
	backend, err := e.on.Find(ctx, types.UID(incarnation.UID))
	if errors.Is(err, runtime.ErrNotFound) {
		return nil // it has exited since it was listed
	} else if err != nil {
		return fmt.Errorf("stop %s: %w", incarnation.Name, err)
	}
	if err := backend.Stop(ctx, types.UID(incarnation.UID), incarnation.Number); err != nil {
		e.say("%s: %v; killing it", incarnation.Name, err)
		grace = 0
	}
	if grace > 0 && gone(ctx, backend, incarnation, grace) {
		return tidy(ctx, backend, incarnation)
	}
	if err := backend.Kill(ctx, types.UID(incarnation.UID), incarnation.Number); err != nil {
		return fmt.Errorf("stop %s: %w", incarnation.Name, err)
	}
	if !gone(ctx, backend, incarnation, killPatience) {
		return fmt.Errorf("stop %s (process %d): the process did not exit; the next berth up continues to manage it", incarnation.Name, incarnation.PID)
	}
	return tidy(ctx, backend, incarnation)
}

// tidy removes what the backend keeps after the process has exited, such as a tmux session, because no manager is left to remove it.
func tidy(ctx context.Context, backend runtime.Runtime, incarnation facts.Incarnation) error {
	terminals := backend.Capabilities().Terminals
	if terminals == nil {
		return nil
	}
	if err := terminals.Tidy(ctx, types.UID(incarnation.UID)); err != nil {
		return fmt.Errorf("clean up after %s: %w", incarnation.Name, err)
	}
	return nil
}

// record writes to the status that the stop was requested and that the object is no longer ready. The manager has shut down, so no other client writes the
// status.
func (e *processStopper) record(ctx context.Context, object process.Object, number int64, grace time.Duration) error {
	before := object.DeepCopyObject().(client.Object)
	status := object.GetProcessStatus()
	if number == 0 || status.Incarnation != number {
		return nil // an older incarnation, which the next manager would stop anyway
	}
	if status.Stopping == nil || status.Stopping.Incarnation != number {
		status.Stopping = &v1alpha1.StopRequest{
			Incarnation: number, Reason: endReason, KillTime: metav1.NewMicroTime(e.clock.Now().Add(grace)),
		}
	}
	message := "berth up stopped the process on shutdown. The next berth up starts it again."
	if _, once := object.(*v1alpha1.StrategyRun); once {
		message = "berth up cancelled the run on shutdown."
	}
	conditions.Writer{Conditions: &status.Conditions, Generation: status.ObservedGeneration, Now: e.clock.Now()}.
		Be(v1alpha1.ConditionReconciling, v1alpha1.ReasonStopping, message)
	return e.api.Status().Patch(ctx, object, client.MergeFrom(before), client.FieldOwner(fieldOwner))
}

// gone waits until no process of the incarnation is alive, for at most the duration patience. It reports whether none is alive.
func gone(ctx context.Context, backend runtime.Runtime, incarnation facts.Incarnation, patience time.Duration) bool {
	return wait.PollUntilContextTimeout(ctx, endPoll, patience, true, func(ctx context.Context) (bool, error) {
		found, err := backend.Observe(ctx, types.UID(incarnation.UID))
		alive := func(i facts.Incarnation) bool { return i.Number == incarnation.Number && i.Alive() }
		return err == nil && !slices.ContainsFunc(found, alive), nil
	}) == nil
}
