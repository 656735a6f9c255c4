// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
)

func desiredOnce() Desired {
	return Desired{Generation: 1, State: DesiredRunning, SpecHash: "a", RestartPolicy: v1alpha1.RestartNever, UpdatePolicy: v1alpha1.UpdateOnRestart, Once: &Once{}}
}

func TestOnce_OmitsBreakerAndRestarting(t *testing.T) {
	g := NewWithT(t)
	first := Next(desiredOnce(), v1alpha1.ProcessStatus{}, Observed{}, start)
	g.Expect(first.Action).To(Equal(StartProcess))
	g.Expect(first.Events).To(BeEmpty(), "normal progress is no event")
	g.Expect(first.Outcome).To(BeEmpty())
	g.Expect(first.Status.Breaker).To(BeNil())
	var types []string
	for _, condition := range first.Status.Conditions {
		types = append(types, condition.Type)
	}
	g.Expect(types).To(ConsistOf(v1alpha1.ConditionReady, v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled))
	g.Expect(Next(desiredOnce(), first.Status, Observed{}, start).Status).To(Equal(first.Status), "the next reconcile changes nothing")
}

// The record of the process can wait for recordDelay, because most short runs end before.
func TestOnce_PostponesTheRecordOfTheProcess(t *testing.T) {
	g := NewWithT(t)
	record := Next(desiredOnce(), v1alpha1.ProcessStatus{}, Observed{}, start).Status
	running := Observed{Incarnations: []facts.Incarnation{{Number: 1, Phase: facts.Running, PID: 7, StartedAt: start}}}
	soon := Next(desiredOnce(), record, running, start.Add(recordDelay/2))
	g.Expect(soon.Postponed).To(BeTrue())
	g.Expect(soon.Requeue).To(Equal(recordDelay / 2))
	g.Expect(soon.Status).To(Equal(record))
	later := Next(desiredOnce(), record, running, start.Add(recordDelay))
	g.Expect(later.Postponed).To(BeFalse())
	g.Expect(later.Status.Process.PID).To(Equal(int64(7)))
	for name, change := range map[string]func(*Desired, *v1alpha1.ProcessStatus, *time.Time){
		"the spec has changed": func(d *Desired, _ *v1alpha1.ProcessStatus, _ *time.Time) { d.Generation++ },
		"the run is cancelled": func(d *Desired, _ *v1alpha1.ProcessStatus, _ *time.Time) {
			d.State = DesiredStopped
		},
		"another process is recorded": func(_ *Desired, s *v1alpha1.ProcessStatus, _ *time.Time) {
			s.Process = later.Status.Process.DeepCopy()
			s.Process.PID++
		},
		"the clock was set back": func(_ *Desired, _ *v1alpha1.ProcessStatus, now *time.Time) { *now = start.Add(-time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			desired, status, now := desiredOnce(), *record.DeepCopy(), start
			change(&desired, &status, &now)
			NewWithT(t).Expect(Next(desired, status, running, now).Postponed).To(BeFalse())
		})
	}
}

func TestOnce_DerivesOutcomeFromExit(t *testing.T) {
	exited := func(exit facts.Exit) []facts.Incarnation {
		exit.Known = true
		return []facts.Incarnation{{Number: 1, Phase: facts.Exited, Exit: &exit}}
	}
	stopping := func(s *v1alpha1.ProcessStatus, reason string) {
		s.Stopping = &v1alpha1.StopRequest{Incarnation: 1, Reason: reason, KillTime: metav1.NewMicroTime(start.Add(time.Minute))}
	}
	for name, row := range map[string]struct {
		change  func(*Desired, *v1alpha1.ProcessStatus)
		found   []facts.Incarnation
		outcome v1alpha1.RunOutcome
		says    string
	}{
		"exit code 0": {nil, exited(facts.Exit{}), v1alpha1.OutcomeSucceeded, "The run ended with exit code 0."},
		"exit code 3": {nil, exited(facts.Exit{Code: 3}), v1alpha1.OutcomeFailed, "The run ended with exit code 3."},
		"killed":      {nil, exited(facts.Exit{Signal: "SIGKILL", Message: "too much memory."}), v1alpha1.OutcomeFailed, "The run was terminated by SIGKILL: too much memory."},
		"lost":        {nil, exited(facts.Exit{Lost: true, Code: 137, Message: "evicted."}), v1alpha1.OutcomeFailed, "The run was lost: evicted."},
		"never executed": {nil, []facts.Incarnation{{Number: 1, Phase: facts.Failed, StartError: &facts.StartError{Reason: v1alpha1.ReasonCommandNotFound, Message: "no such program"}}},
			v1alpha1.OutcomeFailed, "The run failed: no such program."},
		"timed out": {func(_ *Desired, s *v1alpha1.ProcessStatus) { stopping(s, v1alpha1.ReasonTimedOut) }, exited(facts.Exit{Signal: "SIGTERM"}),
			v1alpha1.OutcomeTimedOut, "The run exceeded its timeout and was stopped."},
		"cancelled": {func(d *Desired, s *v1alpha1.ProcessStatus) {
			d.State = DesiredStopped
			stopping(s, v1alpha1.ReasonStopped)
		}, exited(facts.Exit{Signal: "SIGTERM"}), v1alpha1.OutcomeCancelled, "The run was cancelled."},
		"cancelled before the start": {func(d *Desired, s *v1alpha1.ProcessStatus) {
			d.State = DesiredStopped
			s.Incarnation = 0
		}, nil, v1alpha1.OutcomeCancelled, "The run was cancelled."},
		"skipped": {func(d *Desired, s *v1alpha1.ProcessStatus) {
			d.Blocked = &Blocked{Reason: v1alpha1.ReasonSkippedCircuitOpen, Message: "The breaker is open.", Outcome: v1alpha1.OutcomeSkipped}
			s.Incarnation = 0
		}, nil, v1alpha1.OutcomeSkipped, "The breaker is open."},
		"skipped after the start was recorded": {func(d *Desired, _ *v1alpha1.ProcessStatus) {
			d.Blocked = &Blocked{Reason: v1alpha1.ReasonSkippedCircuitOpen, Message: "The breaker is open.", Outcome: v1alpha1.OutcomeSkipped}
		}, nil, v1alpha1.OutcomeSkipped, "The breaker is open."},
		"ended before the breaker opened": {func(d *Desired, _ *v1alpha1.ProcessStatus) {
			d.Blocked = &Blocked{Reason: v1alpha1.ReasonSkippedCircuitOpen, Message: "The breaker is open.", Outcome: v1alpha1.OutcomeSkipped}
		}, exited(facts.Exit{Code: 3}), v1alpha1.OutcomeFailed, "The run ended with exit code 3."},
		"running": {nil, []facts.Incarnation{{Number: 1, Phase: facts.Running, PID: 7, StartedAt: start.Add(-time.Hour)}}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			desired, record := desiredOnce(), Next(desiredOnce(), v1alpha1.ProcessStatus{}, Observed{}, start).Status
			if row.change != nil {
				row.change(&desired, &record)
			}
			step := Next(desired, record, Observed{Incarnations: row.found}, start)
			g.Expect(step.Outcome).To(Equal(row.outcome))
			ready := meta.FindStatusCondition(step.Status.Conditions, v1alpha1.ConditionReady)
			if row.outcome == "" {
				g.Expect(ready.Status).To(Equal(metav1.ConditionTrue))
				return
			}
			g.Expect(ready.Message).To(Equal(row.says))
			g.Expect(ready.Reason).To(Equal(string(row.outcome)))
			g.Expect(meta.IsStatusConditionTrue(step.Status.Conditions, v1alpha1.ConditionStalled)).To(Equal(row.outcome != v1alpha1.OutcomeSucceeded))
			g.Expect(meta.IsStatusConditionTrue(step.Status.Conditions, v1alpha1.ConditionSucceeded)).To(Equal(row.outcome == v1alpha1.OutcomeSucceeded))

			finished := desired
			finished.Generation, finished.Once = 2, &Once{Outcome: step.Outcome, FinishTime: start}
			again := Next(finished, step.Status, Observed{}, start.Add(time.Hour))
			g.Expect(again.Outcome).To(Equal(row.outcome))
			g.Expect(again.Action).To(Equal(None))
			g.Expect(again.Expires).To(Equal(start))
			g.Expect(again.Events).To(BeEmpty())
			for i := range step.Status.Conditions {
				step.Status.Conditions[i].ObservedGeneration = 2
			}
			step.Status.ObservedGeneration = 2
			g.Expect(again.Status).To(Equal(step.Status), "a recorded outcome does not change, whatever the backend forgets")
		})
	}
}

func TestOnce_EmitsOneEventForFailure(t *testing.T) {
	for name, row := range map[string]struct {
		found facts.Incarnation
		want  string
	}{
		"a failed program": {facts.Incarnation{Number: 1, Phase: facts.Exited, Exit: &facts.Exit{Known: true, Code: 3}}, "exit code 3"},
		"a failed start":   {facts.Incarnation{Number: 1, Phase: facts.Failed, StartError: &facts.StartError{Reason: v1alpha1.ReasonCommandNotFound, Message: "no such program"}}, "o such program"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			record := Next(desiredOnce(), v1alpha1.ProcessStatus{}, Observed{}, start).Status
			step := Next(desiredOnce(), record, Observed{Incarnations: []facts.Incarnation{row.found}}, start)
			g.Expect(step.Events).To(ConsistOf(HaveField("Message", ContainSubstring(row.want))))
			g.Expect(step.Events[0].Message).NotTo(ContainSubstring("restartPolicy"))
		})
	}
}

func TestOnce_DescribesExit(t *testing.T) {
	g := NewWithT(t)
	for says, end := range map[string]*v1alpha1.ProcessExit{
		"failed":                                   nil,
		"was lost: evicted":                        {Reason: v1alpha1.ReasonLost, ExitCode: ptr.To[int32](0), Message: "evicted."},
		"ended with exit code 137: too much":       {Reason: v1alpha1.ReasonFailed, ExitCode: ptr.To[int32](137), Message: "too much"},
		"was terminated by SIGKILL":                {Reason: v1alpha1.ReasonFailed, Signal: "SIGKILL"},
		"failed: the program vet is in none of it": {Reason: v1alpha1.ReasonCommandNotFound, Message: "the program vet is in none of it."},
	} {
		m := &machine{step: Step{Outcome: v1alpha1.OutcomeFailed}}
		m.status.LastExit = end
		g.Expect(m.describeOnce()).To(Equal(says))
	}
}
