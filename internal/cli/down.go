// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/gofrs/flock"
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/conditions"
	"github.com/berth-dev/berth/internal/controlplane"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/manager"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/tolerant"
)

// downPoll is how often a berth down checks whether another one has ended.
const downPoll = 100 * time.Millisecond

func (a *app) downCommand() *cobra.Command {
	f := &upFlags{}
	command := &cobra.Command{
		Use:   "down",
		Short: "Stop berth up, its processes and its control plane",
		Long: "Down stops the berth up of a state directory in the same way as Ctrl-C, and waits until it has ended. It also stops the processes and the control plane\n" +
			"that an earlier berth up left behind because it was killed or ran with --keep. The objects are kept, and the next berth up starts their processes\n" +
			"again. Adopted processes keep running.",
		Example: "  # Start berth up in the background, and stop it\n" +
			"  berth up --detach\n" +
			"  berth down",
		Args: needs(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error { return a.down(command.Context(), f) },
	}
	f.addLocations(command)
	return command
}

func (a *app) down(ctx context.Context, f *upFlags) error {
	// A berth manager may use the same kind of directory, and down must not stop its processes.
	if _, err := os.Stat(controlplane.KubeconfigPath(f.stateDir)); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("berth up has not run with the state directory %s: set --state-dir", f.stateDir)
	}
	// A second berth down waits, because a second signal would make berth up exit immediately.
	alone := flock.New(filepath.Join(f.stateDir, "down.lock"), flock.SetPermissions(0o600))
	if _, err := alone.TryLockContext(ctx, downPoll); err != nil {
		return fmt.Errorf("wait for another berth down: %w", err)
	}
	defer func() { _ = alone.Close() }()
	owner, err := controlplane.FindOwner(f.stateDir)
	if err != nil {
		return err
	}
	if owner != nil {
		a.say("stopping berth up (process %d)", owner.PID)
		if err := owner.Stop(ctx); err != nil {
			return fmt.Errorf("wait for berth up (process %d): %w", owner.PID, err)
		}
	}
	ended, err := a.endLeftovers(ctx, f)
	switch {
	case err != nil:
		return err
	case owner == nil && !ended:
		a.say("berth up is not running")
	default:
		a.say("stopped")
	}
	return nil
}

// endLeftovers stops the processes and the control plane that a berth up left behind. It reports whether there were any.
func (a *app) endLeftovers(ctx context.Context, f *upFlags) (ended bool, err error) {
	plane, err := controlplane.LeftBehind(f.stateDir)
	if err != nil {
		return false, err
	}
	f.log = logr.Discard()
	opened, err := a.newRuntime(f.runtimeOptions)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, opened.Close()) }()
	found, err := opened.registry.List(ctx)
	if err != nil {
		return false, fmt.Errorf("list running processes: %w", err)
	}
	if !plane && len(stoppable(found)) == 0 {
		return false, nil
	}
	a.say("an earlier berth up left processes behind; stopping them")
	// The control plane has to run, because each stop is recorded in the object.
	running, err := controlplane.Start(ctx, f.controlPlane(a))
	if err != nil && ctx.Err() != nil {
		return false, err
	}
	if err != nil {
		// This fails if another berth up has locked the state directory in the meantime. Its processes must keep running.
		if locked := controlplane.StopLeftBehind(f.controlPlane(a)); locked != nil {
			return false, errors.Join(err, locked)
		}
		stopper := &processStopper{on: opened.registry, clock: a.clock, say: a.say}
		failed := stopper.endAll(context.WithoutCancel(ctx))
		return true, errors.Join(fmt.Errorf("the stops were not recorded in the objects, so the next berth up counts each of them as a crash: %w", err), failed)
	}
	api, err := client.New(tolerant.Config(running.Config(), omitSilently), client.Options{Scheme: manager.Scheme()})
	if err == nil {
		err = a.endWorkloads(ctx, api, opened)
	}
	return true, errors.Join(err, running.Stop())
}

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
		objects, err := listKind(ctx, e.api, kind, "", true)
		if err != nil {
			return byUID, err
		}
		for _, object := range objects {
			byUID[object.GetUID()] = object.(process.Object)
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
	backends, err := e.on.Find(ctx, types.UID(incarnation.UID))
	if errors.Is(err, runtime.ErrNotFound) {
		return nil // it has exited since it was listed
	} else if err != nil {
		return fmt.Errorf("stop %s: %w", incarnation.Name, err)
	}
	backend := backends[0] // berth down has no runtime for Pods
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
// status. After a conflict, for example because a user changed the spec, record reads the object again, unless it was recreated: a new object has no process.
func (e *processStopper) record(ctx context.Context, object process.Object, number int64, grace time.Duration) error {
	uid := object.GetUID()
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		err := e.recordIn(ctx, object, number, grace)
		if apierrors.IsConflict(err) {
			if err := e.api.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil || object.GetUID() != uid {
				return client.IgnoreNotFound(err)
			}
		}
		return err
	})
}

func (e *processStopper) recordIn(ctx context.Context, object process.Object, number int64, grace time.Duration) error {
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
	return e.api.Status().Patch(ctx, object, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(fieldOwner))
}

// gone waits until no process of the incarnation is alive, for at most the duration patience. It reports whether none is alive. It repeats a deferred stop.
func gone(ctx context.Context, backend runtime.Runtime, incarnation facts.Incarnation, patience time.Duration) bool {
	uid := types.UID(incarnation.UID)
	return wait.PollUntilContextTimeout(ctx, endPoll, patience, true, func(ctx context.Context) (bool, error) {
		found, err := backend.Observe(ctx, uid)
		at := slices.IndexFunc(found, func(i facts.Incarnation) bool { return i.Number == incarnation.Number && i.Alive() })
		if at >= 0 && found[at].StopDeferred {
			_ = backend.Stop(ctx, uid, incarnation.Number) // after an error, the process is killed at the end of its grace period
		}
		return err == nil && at < 0, nil
	}) == nil
}
