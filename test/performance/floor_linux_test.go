// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package performance

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
)

// minimumRunRate returns how many runs per second the API server accepts from clients that only make the necessary writes: the creation, the intent to
// start, the result, and the removal of the count finalizer. There is no controller and no process. The writes have the content of a real run: the
// finalizers, the pinned strategy, the exit and the conditions. There are as many clients as the manager has workers for runs. As in a measurement
// of real runs, there are two open watches: one like the manager's and one for the measurement. The measurement ends when its watch has delivered
// every run as counted.
func minimumRunRate(t *testing.T) float64 {
	t.Helper()
	namespace := newNamespace(t)
	return runRate(t, namespace, runCount, func(i int) error {
		run := newRun(namespace, i)
		run.Finalizers = []string{v1alpha1.FinalizerProcess, v1alpha1.FinalizerCount}
		return writeRun(t, run)
	})
}

// runRate calls do for each job and returns how many runs per second were counted.
func runRate(t *testing.T, namespace string, jobs int, do func(i int) error) float64 {
	t.Helper()
	recorder := newRunRecorder()
	watchAll(t, "", &v1alpha1.StrategyRunList{}, func(client.Object) {})
	watchAll(t, namespace, &v1alpha1.StrategyRunList{}, recorder.record)
	began := time.Now()
	inParallel(t, jobs, process.DefaultConcurrency, do)
	NewWithT(t).Eventually(recorder.all).WithTimeout(patience).Should(BeClosed())
	rate := runCount / time.Since(began).Seconds()
	deleteRuns(t, namespace)
	return rate
}

// writeRun creates a run and then writes it three times as the manager does, with merge patches that fail if the object has changed: the intent, the
// result, and the removal of all finalizers.
func writeRun(t *testing.T, run *v1alpha1.StrategyRun) error {
	if err := k8s.Create(t.Context(), run); err != nil {
		return fmt.Errorf("create: %w", err)
	}
	for _, write := range []func(*v1alpha1.StrategyRun){setIntent, setSucceeded} {
		before := run.DeepCopy()
		write(run)
		if err := k8s.Status().Patch(t.Context(), run, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
			return fmt.Errorf("write the status: %w", err)
		}
	}
	before := run.DeepCopy()
	run.Finalizers = nil
	return k8s.Patch(t.Context(), run, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
}

// setIntent sets the status fields that the manager writes before it starts a process.
func setIntent(run *v1alpha1.StrategyRun) {
	run.Status.ObservedGeneration, run.Status.Incarnation = run.Generation, 1
	run.Status.Pinned = &v1alpha1.PinnedStrategy{
		UID: run.UID, Generation: 1, TimeoutSeconds: 3600, Process: &v1alpha1.ProcessTemplate{Command: []string{"/bin/true"}},
	}
	setCondition(run, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonStarting, "Starting incarnation 1.")
	setCondition(run, v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.ReasonStarting, "Starting incarnation 1.")
	setCondition(run, v1alpha1.ConditionStalled, metav1.ConditionFalse, v1alpha1.ReasonStarting, "")
}

// setSucceeded sets the result of a finished run.
func setSucceeded(run *v1alpha1.StrategyRun) {
	now := ptr.To(metav1.NowMicro())
	run.Status.Outcome, run.Status.FinishTime = v1alpha1.OutcomeSucceeded, now
	run.Status.LastExit = &v1alpha1.ProcessExit{Incarnation: 1, ExitCode: ptr.To[int32](0), Reason: v1alpha1.ReasonCompleted, FinishTime: now}
	setCondition(run, v1alpha1.ConditionReady, metav1.ConditionTrue, string(v1alpha1.OutcomeSucceeded), "The run ended with exit code 0.")
	setCondition(run, v1alpha1.ConditionReconciling, metav1.ConditionFalse, string(v1alpha1.OutcomeSucceeded), "")
	setCondition(run, v1alpha1.ConditionStalled, metav1.ConditionFalse, string(v1alpha1.OutcomeSucceeded), "")
	setCondition(run, v1alpha1.ConditionSucceeded, metav1.ConditionTrue, string(v1alpha1.OutcomeSucceeded), "The run ended with exit code 0.")
}

func setCondition(run *v1alpha1.StrategyRun, conditionType string, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&run.Status.Conditions, metav1.Condition{
		Type: conditionType, Status: status, Reason: reason, Message: message, ObservedGeneration: run.Generation,
	})
}
