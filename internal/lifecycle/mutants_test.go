// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
)

// decider has the signature of Next.
type decider func(Desired, v1alpha1.ProcessStatus, Observed, time.Time) Step

// broken contains variants of Next, each without one guard. The explorer has to find a violation for every one of them; otherwise the explorer
// proves nothing.
var broken = map[string]decider{
	"starts without recording the intent": func(d Desired, r v1alpha1.ProcessStatus, o Observed, now time.Time) Step {
		step := Next(d, r, o, now)
		if step.Action == StartProcess {
			step.Status.Incarnation = r.Incarnation
		}
		return step
	},
	"ignores live incarnations": func(d Desired, r v1alpha1.ProcessStatus, o Observed, now time.Time) Step {
		o.Incarnations = nil
		return Next(d, r, o, now)
	},
	"starts the next incarnation before the old one has exited": func(d Desired, r v1alpha1.ProcessStatus, o Observed, now time.Time) Step {
		if r.Stopping != nil {
			o.Incarnations = nil
		}
		return Next(d, r, o, now)
	},
	"removes the finalizer before the process has exited": func(d Desired, r v1alpha1.ProcessStatus, o Observed, now time.Time) Step {
		step := Next(d, r, o, now)
		if d.State == DesiredDeleted {
			step.Action, step.Released = Forget, true
		}
		return step
	},
	"ignores a stop": func(d Desired, r v1alpha1.ProcessStatus, o Observed, now time.Time) Step {
		if d.State == DesiredStopped {
			d.State = DesiredRunning
		}
		return Next(d, r, o, now)
	},
	"never sleeps": func(d Desired, r v1alpha1.ProcessStatus, o Observed, now time.Time) Step {
		if d.State == DesiredAsleep {
			d.State = DesiredRunning
		}
		return Next(d, r, o, now)
	},
	"sleeps after a failure": func(d Desired, r v1alpha1.ProcessStatus, o Observed, now time.Time) Step {
		step := Next(d, r, o, now)
		if d.State == DesiredAsleep && r.LastExit != nil && r.LastExit.Reason == v1alpha1.ReasonFailed {
			m := &machine{desired: d, observed: o, now: now, status: step.Status}
			m.decideSleep(nil)
			return Step{Status: m.status, Action: None}
		}
		return step
	},
	"ignores a deletion": func(d Desired, r v1alpha1.ProcessStatus, o Observed, now time.Time) Step {
		if d.State == DesiredDeleted {
			d.State = DesiredStopped
		}
		return Next(d, r, o, now)
	},
	"never carries out a restart request": func(d Desired, r v1alpha1.ProcessStatus, o Observed, now time.Time) Step {
		step := Next(d, r, o, now)
		step.Status.ObservedRestartToken = r.ObservedRestartToken
		return step
	},
	"drops a restart request": func(d Desired, r v1alpha1.ProcessStatus, o Observed, now time.Time) Step {
		d.RestartToken = r.ObservedRestartToken
		return Next(d, r, o, now)
	},
	"drops a changed spec": func(d Desired, r v1alpha1.ProcessStatus, o Observed, now time.Time) Step {
		if r.SpecHash != "" {
			d.SpecHash = r.SpecHash
		}
		return Next(d, r, o, now)
	},
	"counts a requested stop as a crash": func(d Desired, r v1alpha1.ProcessStatus, o Observed, now time.Time) Step {
		step := Next(d, r, o, now)
		step.Status.Stopping = nil
		return step
	},
	"keeps Ready beside Reconciling": func(d Desired, r v1alpha1.ProcessStatus, o Observed, now time.Time) Step {
		step := Next(d, r, o, now)
		if meta.IsStatusConditionTrue(r.Conditions, v1alpha1.ConditionReady) {
			meta.SetStatusCondition(&step.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Kept"})
		}
		return step
	},
	"starts ahead without a reservation": func(d Desired, r v1alpha1.ProcessStatus, o Observed, now time.Time) Step {
		if len(o.Incarnations) > 0 && o.Incarnations[len(o.Incarnations)-1].Number == r.Incarnation {
			r.ReservedIncarnation = r.Incarnation + 1
		}
		step := Next(d, r, o, now)
		step.Status.ReservedIncarnation = 0
		return step
	},
	"starts ahead regardless of the desired state": func(d Desired, r v1alpha1.ProcessStatus, o Observed, now time.Time) Step {
		if exited := len(o.Incarnations) > 0 && o.Incarnations[len(o.Incarnations)-1].Phase == facts.Exited; exited && r.ReservedIncarnation > r.Incarnation {
			return Step{Status: r, Action: StartProcess, Incarnation: r.ReservedIncarnation, PreStart: true}
		}
		return Next(d, r, o, now)
	},
	"does not record the exit before a start ahead": func(d Desired, r v1alpha1.ProcessStatus, o Observed, now time.Time) Step {
		step := Next(d, r, o, now)
		if r.ReservedIncarnation > r.Incarnation && step.Status.Incarnation > r.Incarnation {
			step.Status.LastExit = r.LastExit
		}
		return step
	},
	"records the current spec for a start ahead": func(d Desired, r v1alpha1.ProcessStatus, o Observed, now time.Time) Step {
		o.Incarnations = slices.Clone(o.Incarnations)
		for i := range o.Incarnations {
			o.Incarnations[i].Origin = facts.Origin{SpecHash: d.SpecHash, RestartToken: d.RestartToken}
		}
		return Next(d, r, o, now)
	},
	"does not compare the record with the origin": func(d Desired, r v1alpha1.ProcessStatus, o Observed, now time.Time) Step {
		o.Incarnations = slices.Clone(o.Incarnations)
		for i := range o.Incarnations {
			if o.Incarnations[i].Number == r.Incarnation {
				o.Incarnations[i].Origin = facts.Origin{}
			}
		}
		return Next(d, r, o, now)
	},
	"starts ahead with a port that is not recorded": func(d Desired, r v1alpha1.ProcessStatus, o Observed, now time.Time) Step {
		d.RecordFirst = false
		return Next(d, r, o, now)
	},
	"counts a start ahead twice": func(d Desired, r v1alpha1.ProcessStatus, o Observed, now time.Time) Step {
		step := Next(d, r, o, now)
		if step.PreStart {
			step.Status.RestartCount++
			step.PreStart = false
		}
		return step
	},
	"changes the outcome of a run": func(d Desired, r v1alpha1.ProcessStatus, o Observed, now time.Time) Step {
		if d.Once != nil {
			d.Once = &Once{Outcome: d.Once.Outcome}
		}
		return Next(d, r, o, now)
	},
	"never records the process of a run": func(d Desired, r v1alpha1.ProcessStatus, o Observed, now time.Time) Step {
		step := Next(d, r, o, now)
		if d.Once != nil && step.Outcome == "" && r.Process == nil {
			step.Status.Process = nil
		}
		return step
	},
	"takes any exit of a run for a success": func(d Desired, r v1alpha1.ProcessStatus, o Observed, now time.Time) Step {
		step := Next(d, r, o, now)
		if step.Outcome != "" {
			step.Outcome = v1alpha1.OutcomeSucceeded
		}
		return step
	},
	"restarts a run": func(d Desired, r v1alpha1.ProcessStatus, o Observed, now time.Time) Step {
		if d.Once != nil {
			d.Once, d.RestartPolicy = nil, v1alpha1.RestartAlways
		}
		return Next(d, r, o, now)
	},
	"stops a process for a restart that would fail": func(d Desired, r v1alpha1.ProcessStatus, o Observed, now time.Time) Step {
		o.StartFailure = nil
		return Next(d, r, o, now)
	},
	"does not report a restart that would fail": func(d Desired, r v1alpha1.ProcessStatus, o Observed, now time.Time) Step {
		step := Next(d, r, o, now)
		meta.RemoveStatusCondition(&step.Status.Conditions, v1alpha1.ConditionDriftDetected)
		return step
	},
	"starts a session again": func(d Desired, r v1alpha1.ProcessStatus, o Observed, now time.Time) Step {
		step := Next(d, r, o, now)
		if step.Action == StartProcess {
			step.SessionStart = v1alpha1.SessionNew
		}
		return step
	},
	"resumes a session that was not started": func(d Desired, r v1alpha1.ProcessStatus, o Observed, now time.Time) Step {
		step := Next(d, r, o, now)
		if step.Status.Resume != nil && step.Status.Resume.Next == v1alpha1.SessionNew {
			step.Status.Resume = step.Status.Resume.DeepCopy()
			step.Status.Resume.Next = v1alpha1.SessionResumed
		}
		return step
	},
	"does not fall back from a session that cannot be resumed": func(d Desired, r v1alpha1.ProcessStatus, o Observed, now time.Time) Step {
		step := Next(d, r, o, now)
		if step.Status.Resume != nil && step.Status.Resume.Next == v1alpha1.SessionFallback {
			step.Status.Resume = step.Status.Resume.DeepCopy()
			step.Status.Resume.Next = v1alpha1.SessionResumed
		}
		return step
	},
	"forgets how a session was started ahead": func(d Desired, r v1alpha1.ProcessStatus, o Observed, now time.Time) Step {
		step := Next(d, r, o, now)
		if step.PreStart {
			step.SessionStart = v1alpha1.SessionNew
		}
		return step
	},
	"keeps a session that was resumed with an older command": func(d Desired, r v1alpha1.ProcessStatus, o Observed, now time.Time) Step {
		if r.Resume != nil && r.Resume.CommandHash != "" {
			d.ResumeHash = r.Resume.CommandHash
		}
		return Next(d, r, o, now)
	},
	"does not requeue after the back-off": func(d Desired, r v1alpha1.ProcessStatus, o Observed, now time.Time) Step {
		step := Next(d, r, o, now)
		if r.NextRestartTime != nil && step.Action == StartProcess {
			return Step{Status: r, Action: None}
		}
		return step
	},
}

// littleTrouble is enough to find most variants in few states.
var littleTrouble = budget{toggles: 1, sleeps: 1, restarts: 1, specs: 1, edits: 1, deletes: 1, exits: 1}

// crashTrouble is enough for the variants that concern pre-started incarnations.
var crashTrouble = budget{toggles: 1, exits: 1, specs: 1, ports: 1}

// sessionTrouble is enough for the variants that concern sessions.
var sessionTrouble = budget{exits: 3}

func TestExplorer_FindsEveryBrokenGuard(t *testing.T) {
	defer func() { next = Next }()
	for name, wrong := range broken {
		t.Run(name, func(t *testing.T) {
			next = wrong
			trouble := littleTrouble
			if strings.Contains(name, "ahead") {
				trouble = crashTrouble
			}
			from := newWorld(trouble, v1alpha1.RestartAlways)
			if strings.Contains(name, "a session") {
				from = newSession(sessionTrouble, v1alpha1.RestartAlways)
				from.desired.Breaker.Threshold = 10
				if strings.Contains(name, "older command") {
					from.budget.resumes = 1
				}
			}
			if strings.Contains(name, "a run") {
				from = newRun(littleTrouble)
			}
			if strings.Contains(name, "origin") {
				from.desired.Reserve, from.budget.leaders = false, 1
			}
			from.obstructed = strings.Contains(name, "would fail")
			states, _, violation := explore(from, 150_000)
			if violation == "" {
				t.Fatalf("not found in %d states", states)
			}
			t.Logf("found after %d states: %s", states, violation)
		})
	}
}
