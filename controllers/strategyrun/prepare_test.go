// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package strategyrun

import (
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/runtime"
)

func TestDeriveStatus_KeepsOnlyWarningEvents(t *testing.T) {
	g := NewWithT(t)
	now := time.Unix(1_800_000_000, 0)
	wrong := lifecycle.Event{Warning: true, Reason: v1alpha1.ReasonRuntimeUnavailable, Message: "no more processes"}
	step := &lifecycle.Step{Events: []lifecycle.Event{{Reason: v1alpha1.ReasonStarting, Message: "Starting incarnation 1."}, wrong}}
	New(nil, nil, nil, nil).DeriveStatus(&v1alpha1.StrategyRun{}, &v1alpha1.StrategyRun{}, step, now)
	g.Expect(step.Events).To(ConsistOf(wrong))
}

func TestDescribe_ReportsExitOfRun(t *testing.T) {
	g := NewWithT(t)
	for says, end := range map[string]*v1alpha1.ProcessExit{
		"failed":                                   nil,
		"was lost: evicted":                        {Reason: v1alpha1.ReasonLost, ExitCode: ptr.To[int32](0), Message: "evicted."},
		"ended with exit code 137: too much":       {Reason: v1alpha1.ReasonFailed, ExitCode: ptr.To[int32](137), Message: "too much"},
		"was terminated by SIGKILL":                {Reason: v1alpha1.ReasonFailed, Signal: "SIGKILL"},
		"failed: the program vet is in none of it": {Reason: v1alpha1.ReasonCommandNotFound, Message: "the program vet is in none of it."},
	} {
		run := &v1alpha1.StrategyRun{}
		run.Status.LastExit = end
		g.Expect(describe(run)).To(Equal(says))
	}
}

func TestDeriveStatus_OmitsIrrelevantConditions(t *testing.T) {
	g := NewWithT(t)
	now := time.Unix(1_800_000_000, 0)
	run := &v1alpha1.StrategyRun{}
	desired := lifecycle.Desired{State: lifecycle.DesiredRunning, RestartPolicy: v1alpha1.RestartNever, UpdatePolicy: v1alpha1.UpdateOnRestart}
	step := lifecycle.Next(desired, run.Status.ProcessStatus, lifecycle.Observed{}, now)
	run.Status.ProcessStatus = step.Status
	New(nil, nil, nil, nil).DeriveStatus(run, &v1alpha1.StrategyRun{}, &step, now)
	var types []string
	for _, condition := range run.Status.Conditions {
		types = append(types, condition.Type)
	}
	g.Expect(types).To(ConsistOf(v1alpha1.ConditionReady, v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled))
	g.Expect(run.Status.Breaker).To(BeNil())
	g.Expect(step.Action).To(Equal(lifecycle.StartProcess))

	again := lifecycle.Next(desired, run.Status.ProcessStatus, lifecycle.Observed{}, now)
	later := run.DeepCopy()
	later.Status.ProcessStatus = again.Status
	New(nil, nil, nil, nil).DeriveStatus(later, run, &again, now)
	g.Expect(later.Status).To(Equal(run.Status), "conditions that are left out do not change the status at the next reconcile")
}

func TestDeriveStatus_EmitsOneEventForFailure(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	for name, tc := range map[string]struct {
		found facts.Incarnation
		want  string
	}{
		"a failed program": {facts.Incarnation{Number: 1, Phase: facts.Exited, Exit: &facts.Exit{Known: true, Code: 3}}, "exit code 3"},
		"a failed start":   {facts.Incarnation{Number: 1, Phase: facts.Failed, StartError: &facts.StartError{Reason: v1alpha1.ReasonCommandNotFound, Message: "no such program"}}, "o such program"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			run := &v1alpha1.StrategyRun{}
			desired := lifecycle.Desired{State: lifecycle.DesiredRunning, SpecHash: "a", RestartPolicy: v1alpha1.RestartNever, UpdatePolicy: v1alpha1.UpdateOnRestart}
			step := lifecycle.Next(desired, run.Status.ProcessStatus, lifecycle.Observed{}, now)
			run.Status.ProcessStatus = step.Status
			before := run.DeepCopy()
			step = lifecycle.Next(desired, run.Status.ProcessStatus, lifecycle.Observed{Incarnations: []facts.Incarnation{tc.found}}, now)
			run.Status.ProcessStatus = step.Status
			New(nil, nil, runtime.NewRegistry(runtime.NoRuntime{}, logr.Discard()), nil).DeriveStatus(run, before, &step, now)
			g.Expect(step.Events).To(ConsistOf(HaveField("Message", ContainSubstring(tc.want))))
			g.Expect(step.Events[0].Message).NotTo(ContainSubstring("restartPolicy"))
		})
	}
}
