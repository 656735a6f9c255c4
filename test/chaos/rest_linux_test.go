// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
)

// logBound limits the disk usage of one object's log at rest: twice the limit of the manager.
const logBound = 2 << 20

// waitUntilSettled waits until two consecutive checks find that the system is at rest and matches the specs.
func (w *world) waitUntilSettled(ctx context.Context, patience time.Duration) error {
	good := 0
	return eventually(ctx, patience, 50*time.Millisecond, func() error {
		if err := w.checkNoOverlap(); err != nil {
			return err // the violation stays in the file, so every later check fails, too
		}
		if err := w.checkState(ctx); err != nil {
			good = 0
			return err
		}
		if good++; good < 2 {
			return errors.New("the system was at rest in one check only")
		}
		return nil
	})
}

// checkNoOverlap returns an error if a workload has recorded that another incarnation of its object was alive at the same time.
func (w *world) checkNoOverlap() error {
	violations, err := os.ReadFile(filepath.Join(w.dir, "violations"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && len(violations) > 0 {
		err = fmt.Errorf("two incarnations were alive at once:\n%s", violations)
	}
	return err
}

// objects reads all objects from the API server.
func (w *world) objects(ctx context.Context) (map[types.UID]process.Object, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	found := map[types.UID]process.Object{}
	var instances v1alpha1.InstanceList
	var devServers v1alpha1.DevServerList
	if err := errors.Join(w.api.List(ctx, &instances), w.api.List(ctx, &devServers)); err != nil {
		return nil, fmt.Errorf("list the objects: %w", err)
	}
	for i := range instances.Items {
		found[instances.Items[i].UID] = &instances.Items[i]
	}
	for i := range devServers.Items {
		found[devServers.Items[i].UID] = &devServers.Items[i]
	}
	return found, nil
}

// checkState checks everything once and returns the first difference from the expected state.
func (w *world) checkState(ctx context.Context) error {
	objects, err := w.objects(ctx)
	if err != nil {
		return err
	}
	if err := w.ledger.compare(objects); err != nil {
		return err
	}
	running, err := processesOf(w.workload, w.shim)
	if err != nil {
		return err
	}
	for _, object := range objects {
		if err := checkAtRest(object, running); err != nil {
			return fmt.Errorf("%s (UID %s): %w\nstatus:\n%s", object.GetName(), object.GetUID(), err, formatStatus(object))
		}
	}
	running = slices.DeleteFunc(running, osProcess.isWarmShim)
	for _, p := range running {
		if !slices.ContainsFunc(processOwners(objects), p.belongsTo) {
			return fmt.Errorf("process %s belongs to no object that should run", p)
		}
	}
	if zombies, err := zombiesOf(w.manager.pid()); err != nil || len(zombies) > 0 {
		return fmt.Errorf("the manager has not reaped its children %v: %w", zombies, err)
	}
	return w.checkTraces(objects)
}

// processOwners returns the objects that may have processes.
func processOwners(objects map[types.UID]process.Object) []process.Object {
	var all []process.Object
	for _, object := range objects {
		if wantsProcess(object) {
			all = append(all, object)
		}
	}
	return all
}

func wantsProcess(object process.Object) bool {
	return object.GetProcessSpec().State != v1alpha1.StateStopped && !slices.Contains(object.GetProcessSpec().Process.Command, "exits")
}

func (p osProcess) belongsTo(object process.Object) bool {
	if p.env["CHAOS_NAME"] == "" { // a shim is named after its object
		return len(p.args) > 1 && strings.HasSuffix(p.args[1], "/"+namespace+"/"+object.GetName())
	}
	return p.env["CHAOS_NAME"] == object.GetName() && p.env[envLife] == lifeWord(object) && p.env[envRevision] == envValue(object, envRevision)
}

// checkAtRest returns an error that describes how the object differs from its state at rest.
func checkAtRest(object process.Object, running []osProcess) error {
	spec, current := object.GetProcessSpec(), object.GetProcessStatus()
	if !object.GetDeletionTimestamp().IsZero() {
		return errors.New("the object is still being deleted")
	}
	if current.ObservedGeneration != object.GetGeneration() {
		return fmt.Errorf("generation %d was not observed; the observed generation is %d", object.GetGeneration(), current.ObservedGeneration)
	}
	var states []string
	for _, state := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled} {
		if meta.IsStatusConditionTrue(current.Conditions, state) {
			states = append(states, state)
		}
	}
	if len(states) != 1 {
		return fmt.Errorf("exactly one of Ready, Reconciling and Stalled should be True; True are: %v", states)
	}
	var leaders, shims int
	for _, p := range running {
		switch {
		case !p.belongsTo(object):
		case p.isLeader():
			leaders++
			if at := current.Process; at == nil || at.PID != int64(p.PID) || at.StartTicks != int64(p.Ticks) || at.Incarnation != current.Incarnation {
				return fmt.Errorf("the process is %s, which differs from the status", p)
			}
		case p.env["CHAOS_NAME"] == "":
			shims++
		}
	}
	want, reason := 1, v1alpha1.ReasonRunning
	if !wantsProcess(object) {
		want, reason = 0, v1alpha1.ReasonCompleted
		if spec.State == v1alpha1.StateStopped {
			reason = v1alpha1.ReasonStopped
		}
	}
	if leaders != want || shims > want {
		return fmt.Errorf("%d programs and %d shims run, want %d", leaders, shims, want)
	}
	if ready := meta.FindStatusCondition(current.Conditions, v1alpha1.ConditionReady); ready.Reason != reason {
		return fmt.Errorf("condition Ready has reason %s instead of %s: %s", ready.Reason, reason, ready.Message)
	}
	if current.Stopping != nil || meta.IsStatusConditionTrue(current.Conditions, v1alpha1.ConditionRestarting) {
		return errors.New("a stop or a restart is in progress")
	}
	if want == 1 && current.ObservedRestartToken != spec.RestartToken {
		return fmt.Errorf("the restart %q was not carried out; the last one that was carried out is %q", spec.RestartToken, current.ObservedRestartToken)
	}
	return checkKstatus(object, status.CurrentStatus)
}

// checkKstatus returns an error if the kstatus result for the object differs from want.
func checkKstatus(object process.Object, want status.Status) error {
	content, err := apiruntime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return err
	}
	result, err := status.Compute(&unstructured.Unstructured{Object: content})
	if err != nil {
		return err
	}
	if result.Status != want {
		return fmt.Errorf("kstatus is %s instead of %s: %s", result.Status, want, result.Message)
	}
	return nil
}

// checkTraces returns an error if a directory of a deleted object remains, or if the log of an object takes too much disk space.
func (w *world) checkTraces(objects map[types.UID]process.Object) error {
	for _, dir := range w.traceDirs() {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, entry := range entries {
			if entry.IsDir() && !strings.HasPrefix(entry.Name(), ".") && objects[types.UID(entry.Name())] == nil {
				return fmt.Errorf("%s remains of a deleted object", filepath.Join(dir, entry.Name()))
			}
		}
	}
	for uid, object := range objects {
		var st unix.Stat_t
		path := filepath.Join(w.state, "run", string(uid), "out.log")
		if err := unix.Stat(path, &st); err == nil && st.Blocks*512 > logBound {
			return fmt.Errorf("the log of %s takes %d bytes on disk: %s", object.GetName(), st.Blocks*512, path)
		}
	}
	return nil
}

// formatStatus formats an object's status for a report.
func formatStatus(object process.Object) string {
	var text strings.Builder
	current := object.GetProcessStatus()
	fmt.Fprintf(&text, "  spec: state %s, restartToken %q, generation %d, deletion %v, command %v\n", object.GetProcessSpec().State,
		object.GetProcessSpec().RestartToken, object.GetGeneration(), object.GetDeletionTimestamp(), object.GetProcessSpec().Process.Command[1:])
	fmt.Fprintf(&text, "  incarnation %d, restarts %d, failures %d, observed generation %d, observed token %q\n", current.Incarnation, current.RestartCount,
		current.Failures, current.ObservedGeneration, current.ObservedRestartToken)
	fmt.Fprintf(&text, "  process %+v\n  stopping %+v\n  last exit %+v\n  next restart %v\n", current.Process, current.Stopping, current.LastExit, current.NextRestartTime)
	for _, c := range current.Conditions {
		fmt.Fprintf(&text, "  %s=%s %s (generation %d, since %s): %s\n", c.Type, c.Status, c.Reason, c.ObservedGeneration, c.LastTransitionTime, c.Message)
	}
	return text.String()
}
