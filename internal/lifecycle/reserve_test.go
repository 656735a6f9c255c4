// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"testing"
	"time"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
)

// crashed returns the arguments of Next for a process that ran well for a minute and has just crashed.
func crashed(t *testing.T) (Desired, v1alpha1.ProcessStatus, Observed, time.Time) {
	t.Helper()
	w := newWorld(budget{}, v1alpha1.RestartAlways)
	w.desired.Probed = false
	running := Observed{Incarnations: []facts.Incarnation{{Number: 1, Phase: facts.Running, PID: 1, StartedAt: start}}}
	first := Next(w.desired, v1alpha1.ProcessStatus{}, Observed{}, start)
	step := Next(w.desired, first.Status, running, start)
	if step.Status.ReservedIncarnation != 2 {
		t.Fatalf("while incarnation 1 runs, %d is reserved", step.Status.ReservedIncarnation)
	}
	now := start.Add(time.Minute)
	ended := facts.Incarnation{Number: 1, Phase: facts.Exited, PID: 1, StartedAt: start, Exit: &facts.Exit{Known: true, Code: 3, FinishedAt: now}}
	return w.desired, step.Status, Observed{Incarnations: []facts.Incarnation{ended}}, now
}

func TestPreStart_RestartsAfterFirstCrash(t *testing.T) {
	desired, record, observed, now := crashed(t)
	step := Next(desired, record, observed, now)
	if !step.PreStart || step.Action != StartProcess || step.Incarnation != 2 || step.Status.Incarnation != 1 || step.Requeue == 0 {
		t.Fatalf("incarnation 2 is not pre-started: %+v", step)
	}
	observed.Incarnations = append(observed.Incarnations, facts.Incarnation{Number: 2, Phase: facts.Running, PID: 2, StartedAt: now})
	step = Next(desired, record, observed, now.Add(10*time.Millisecond))
	s := step.Status
	if s.Incarnation != 2 || s.RestartCount != 1 || s.Failures != 1 || s.LastExit.Incarnation != 1 || *s.LastExit.ExitCode != 3 || s.Process.PID != 2 || s.ReservedIncarnation != 3 {
		t.Fatalf("one write does not record everything: %+v", s)
	}
	var reasons []string
	for _, event := range step.Events {
		reasons = append(reasons, event.Reason)
	}
	if len(reasons) != 3 || reasons[0] != v1alpha1.ReasonCrashed || reasons[1] != v1alpha1.ReasonStarting || reasons[2] != v1alpha1.ReasonRunning {
		t.Fatalf("the events are %v", reasons)
	}
}

func TestPreStart_IsSkippedWithoutPrecondition(t *testing.T) {
	for name, change := range map[string]func(*Desired, *v1alpha1.ProcessStatus, *Observed){
		"the backend does not keep exits": func(d *Desired, _ *v1alpha1.ProcessStatus, _ *Observed) { d.KeepsPreviousExit = false },
		"the last start failed":           func(_ *Desired, _ *v1alpha1.ProcessStatus, o *Observed) { o.LastError = "no more processes" },
		"no reservations":                 func(d *Desired, _ *v1alpha1.ProcessStatus, _ *Observed) { d.Reserve = false },
		"a port that is not recorded":     func(d *Desired, _ *v1alpha1.ProcessStatus, _ *Observed) { d.RecordFirst = true },
		"no reserved incarnation":         func(_ *Desired, r *v1alpha1.ProcessStatus, _ *Observed) { r.ReservedIncarnation = 0 },
		"an old reservation":              func(_ *Desired, r *v1alpha1.ProcessStatus, _ *Observed) { r.ReservedIncarnation = 1 },
		"a stop":                          func(d *Desired, _ *v1alpha1.ProcessStatus, _ *Observed) { d.State = DesiredStopped },
		"a deletion":                      func(d *Desired, _ *v1alpha1.ProcessStatus, _ *Observed) { d.State = DesiredDeleted },
		"a blocked object":                func(d *Desired, _ *v1alpha1.ProcessStatus, _ *Observed) { d.Blocked = &Blocked{Reason: "Conflict"} },
		"no restart":                      func(d *Desired, _ *v1alpha1.ProcessStatus, _ *Observed) { d.RestartPolicy = v1alpha1.RestartNever },
		"an earlier failure":              func(_ *Desired, r *v1alpha1.ProcessStatus, _ *Observed) { r.Failures = 1 },
		"a breaker that opens":            func(d *Desired, _ *v1alpha1.ProcessStatus, _ *Observed) { d.Breaker.Threshold = 1 },
		"a breaker that is open":          func(_ *Desired, r *v1alpha1.ProcessStatus, _ *Observed) { r.Breaker.State = v1alpha1.BreakerHalfOpen },
		"a requested stop":                func(_ *Desired, _ *v1alpha1.ProcessStatus, o *Observed) { o.Incarnations[0].StopSent = true },
		"no recorded process":             func(_ *Desired, r *v1alpha1.ProcessStatus, _ *Observed) { r.Process = nil },
		"an unknown exit":                 func(_ *Desired, _ *v1alpha1.ProcessStatus, o *Observed) { o.Incarnations = nil },
		"a newer incarnation": func(_ *Desired, r *v1alpha1.ProcessStatus, o *Observed) {
			o.Incarnations = append(o.Incarnations, facts.Incarnation{Number: 2, Phase: facts.Exited, Exit: &facts.Exit{Known: true, Code: 3}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			desired, record, observed, now := crashed(t)
			change(&desired, &record, &observed)
			if step := Next(desired, record, observed, now); step.PreStart {
				t.Fatalf("incarnation %d is pre-started", step.Incarnation)
			}
		})
	}
}

// TestPreStart_KeepsLaterSpecChangesPending checks that an incarnation is also pre-started in cases other than the plain crash above. The next write records
// the spec hash and restart token from the origin of the process, so later changes of the spec stay pending.
func TestPreStart_KeepsLaterSpecChangesPending(t *testing.T) {
	for name, change := range map[string]func(*Desired, *v1alpha1.ProcessStatus, *Observed){
		"after an edit":              func(d *Desired, _ *v1alpha1.ProcessStatus, _ *Observed) { d.Generation++ },
		"with a changed program":     func(d *Desired, _ *v1alpha1.ProcessStatus, _ *Observed) { d.SpecHash += "+" },
		"after a request to restart": func(d *Desired, _ *v1alpha1.ProcessStatus, _ *Observed) { d.RestartToken += "+" },
		"after a reset":              func(d *Desired, _ *v1alpha1.ProcessStatus, _ *Observed) { d.ResetToken += "+" },
		"after a requested stop": func(_ *Desired, r *v1alpha1.ProcessStatus, _ *Observed) {
			r.Stopping = &v1alpha1.StopRequest{Incarnation: 1}
		},
		"of the first incarnation": func(_ *Desired, r *v1alpha1.ProcessStatus, o *Observed) {
			*r, *o = v1alpha1.ProcessStatus{}, Observed{}
		},
		"after a completed stop": func(d *Desired, r *v1alpha1.ProcessStatus, o *Observed) {
			stop := *d
			stop.State = DesiredStopped
			*r = Next(stop, Next(stop, *r, Observed{Incarnations: o.Incarnations}, start.Add(time.Minute)).Status, *o, start.Add(time.Minute)).Status
		},
	} {
		t.Run(name, func(t *testing.T) {
			desired, record, observed, now := crashed(t)
			change(&desired, &record, &observed)
			step := Next(desired, record, observed, now)
			if !step.PreStart || step.Incarnation != record.Incarnation+1 {
				t.Fatalf("not pre-started: %+v", step)
			}
			observed.Incarnations = append(observed.Incarnations, facts.Incarnation{
				Number: step.Incarnation, Phase: facts.Running, Origin: facts.Origin{SpecHash: desired.SpecHash, RestartToken: desired.RestartToken},
			})
			later := desired
			later.SpecHash, later.RestartToken = "later", "later"
			step = Next(later, record, observed, now)
			s := step.Status
			if s.Incarnation != record.Incarnation+1 || s.SpecHash != desired.SpecHash || s.ObservedRestartToken != desired.RestartToken || s.Stopping == nil {
				t.Fatalf("a pending change of the spec is not recorded: %+v", s)
			}
		})
	}
}

// TestPreStart_StopBeforeRecordIsNotFailure covers a manager that stops a pre-started process during its own shutdown, before it has recorded the start.
func TestPreStart_StopBeforeRecordIsNotFailure(t *testing.T) {
	desired, record, observed, now := crashed(t)
	observed.Incarnations = append(observed.Incarnations, facts.Incarnation{
		Number: 2, Phase: facts.Exited, StopSent: true, Exit: &facts.Exit{Known: true, Signal: "SIGTERM", FinishedAt: now}, Origin: facts.Origin{SpecHash: desired.SpecHash, RestartToken: desired.RestartToken},
	})
	s := Next(desired, record, observed, now).Status
	if s.LastExit.Incarnation != 2 || s.LastExit.Reason != v1alpha1.ReasonStopped || s.Failures != 0 {
		t.Fatalf("a requested stop counts as a failure: %+v", s)
	}
}
