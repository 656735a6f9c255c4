// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package races

import (
	"context"
	"fmt"
	"time"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// planScenario is what one client does with one plan, and the state in which the plan ends.
type planScenario struct {
	target    v1alpha1.PlanPhase
	arguments []string
	// run performs the client's steps after the create.
	run func(ctx context.Context, s *planScenario) error

	// phase, state and attempt are the final values in the status of the plan. effects is the first attempt in which the phase Apply is executed, or 0 if
	// that phase is never executed.
	phase   v1alpha1.PlanPhase
	state   v1alpha1.PlanState
	attempt int32
	effects int32

	plan *v1alpha1.Plan
}

// planScenarios are all sequences of steps that clients perform.
var planScenarios = []planScenario{
	{target: v1alpha1.PhaseApply, run: applyDirectly, phase: v1alpha1.PhaseApply, state: v1alpha1.PlanApplied, attempt: 1, effects: 1},
	{target: v1alpha1.PhaseStrategize, run: approveEachPhase, phase: v1alpha1.PhaseApply, state: v1alpha1.PlanApplied, attempt: 1, effects: 1},
	{target: v1alpha1.PhaseApply, arguments: []string{"hold", "Execute-1"}, run: cancelDuringExecute, phase: v1alpha1.PhaseExecute, state: v1alpha1.PlanCancelled, attempt: 1},
	{target: v1alpha1.PhaseExecute, run: revertThenApply, phase: v1alpha1.PhaseApply, state: v1alpha1.PlanApplied, attempt: 2, effects: 2},
	{target: v1alpha1.PhaseApply, arguments: []string{"fail", "Apply-1"}, run: retryFailedApply, phase: v1alpha1.PhaseApply, state: v1alpha1.PlanApplied, attempt: 2, effects: 1},
	{target: v1alpha1.PhaseApply, arguments: []string{"hold", "Execute-1"}, run: retryDuringExecute, phase: v1alpha1.PhaseApply, state: v1alpha1.PlanApplied, attempt: 2, effects: 2},
	{target: v1alpha1.PhaseApply, arguments: []string{"fail", "Execute-1"}, run: applyDirectly, phase: v1alpha1.PhaseExecute, state: v1alpha1.PlanErrored, attempt: 1},
}

// create creates the plan.
func (s *planScenario) create(ctx context.Context, action *v1alpha1.Action, name string) error {
	s.plan = newPlan(action, name, s.target, s.arguments...)
	if err := k8s.Create(ctx, s.plan); err != nil {
		return fmt.Errorf("create %s: %w", name, err)
	}
	return nil
}

// runSteps calls the functions in order, until one fails.
func runSteps(do ...func() error) error {
	for _, step := range do {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// waitUntil returns a step that waits until the plan has that phase and state; patch returns a step that changes the spec of the plan.
func (s *planScenario) waitUntil(ctx context.Context, phase v1alpha1.PlanPhase, state v1alpha1.PlanState) func() error {
	return func() error {
		return s.poll(ctx, func(p *v1alpha1.Plan) bool { return p.Status.CurrentPhase == phase && p.Status.State == state })
	}
}

// poll waits until condition returns true for the plan. It polls at a low rate, because there are many clients and the plans need the CPU. It gives up
// when the row times out.
func (s *planScenario) poll(ctx context.Context, condition func(*v1alpha1.Plan) bool) error {
	ticker := time.NewTicker(10 * interval)
	defer ticker.Stop()
	for {
		now, err := planNow(ctx, s.plan)
		if err == nil && now.Status.ObservedGeneration == now.Generation && condition(now) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: want final state %s %s, got %s: %w", s.plan.Name, s.phase, s.state, describePlan(now), ctx.Err())
		case <-ticker.C:
		}
	}
}

func (s *planScenario) patch(ctx context.Context, patch string) func() error {
	return func() error { return patchObject(ctx, s.plan, patch) }
}

func (s *planScenario) waitUntilFinal(ctx context.Context) func() error {
	return s.waitUntil(ctx, s.phase, s.state)
}

func applyDirectly(ctx context.Context, scenario *planScenario) error {
	return scenario.waitUntilFinal(ctx)()
}

func approveEachPhase(ctx context.Context, scenario *planScenario) error {
	return runSteps(
		scenario.waitUntil(ctx, v1alpha1.PhaseStrategize, v1alpha1.PlanComplete), scenario.patch(ctx, executePatch),
		scenario.waitUntil(ctx, v1alpha1.PhaseExecute, v1alpha1.PlanComplete), scenario.patch(ctx, applyPatch), scenario.waitUntilFinal(ctx),
	)
}

func cancelDuringExecute(ctx context.Context, scenario *planScenario) error {
	return runSteps(scenario.waitUntil(ctx, v1alpha1.PhaseExecute, v1alpha1.PlanProcessing), scenario.patch(ctx, cancelPatch), scenario.waitUntilFinal(ctx))
}

func revertThenApply(ctx context.Context, scenario *planScenario) error {
	again := func() error {
		return scenario.poll(ctx, func(p *v1alpha1.Plan) bool {
			return p.Status.Attempt == scenario.attempt && p.Status.State == v1alpha1.PlanComplete
		})
	}
	return runSteps(scenario.waitUntil(ctx, v1alpha1.PhaseExecute, v1alpha1.PlanComplete), scenario.patch(ctx, revertPatch), again, scenario.patch(ctx, applyAgainPatch), scenario.waitUntilFinal(ctx))
}

func retryFailedApply(ctx context.Context, scenario *planScenario) error {
	return runSteps(scenario.waitUntil(ctx, v1alpha1.PhaseApply, v1alpha1.PlanErrored), scenario.patch(ctx, retryApplyPatch), scenario.waitUntilFinal(ctx))
}

// retryDuringExecute requests a retry while the run is in progress: Berth stops the run and ignores its result.
func retryDuringExecute(ctx context.Context, scenario *planScenario) error {
	return runSteps(scenario.waitUntil(ctx, v1alpha1.PhaseExecute, v1alpha1.PlanProcessing), scenario.patch(ctx, retryExecutePatch), scenario.waitUntilFinal(ctx))
}
