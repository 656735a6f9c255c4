// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package races

import (
	"context"
	"fmt"
	"time"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// use is what one client does with one plan, and the state in which the plan ends.
type use struct {
	target    v1alpha1.PlanPhase
	arguments []string
	// live performs the client's steps after the create.
	live func(ctx context.Context, u *use) error

	// phase, state and attempt are those in which the plan ends. effects is the first attempt in which apply is executed, or 0 if apply is never
	// executed.
	phase   v1alpha1.PlanPhase
	state   v1alpha1.PlanState
	attempt int32
	effects int32

	p *v1alpha1.Plan
}

// stories are all sequences of steps that clients perform.
var stories = []use{
	{target: v1alpha1.PhaseApply, live: straight, phase: v1alpha1.PhaseApply, state: v1alpha1.PlanApplied, attempt: 1, effects: 1},
	{target: v1alpha1.PhaseStrategize, live: gated, phase: v1alpha1.PhaseApply, state: v1alpha1.PlanApplied, attempt: 1, effects: 1},
	{target: v1alpha1.PhaseApply, arguments: []string{"hold", "Execute-1"}, live: calledOffMeanwhile, phase: v1alpha1.PhaseExecute, state: v1alpha1.PlanCancelled, attempt: 1},
	{target: v1alpha1.PhaseExecute, live: reverted, phase: v1alpha1.PhaseApply, state: v1alpha1.PlanApplied, attempt: 2, effects: 2},
	{target: v1alpha1.PhaseApply, arguments: []string{"fail", "Apply-1"}, live: retried, phase: v1alpha1.PhaseApply, state: v1alpha1.PlanApplied, attempt: 2, effects: 1},
	{target: v1alpha1.PhaseApply, arguments: []string{"hold", "Execute-1"}, live: retriedMeanwhile, phase: v1alpha1.PhaseApply, state: v1alpha1.PlanApplied, attempt: 2, effects: 2},
	{target: v1alpha1.PhaseApply, arguments: []string{"fail", "Execute-1"}, live: straight, phase: v1alpha1.PhaseExecute, state: v1alpha1.PlanErrored, attempt: 1},
}

// create creates the plan.
func (u *use) create(ctx context.Context, action *v1alpha1.Action, name string) error {
	u.p = newPlan(action, name, u.target, u.arguments...)
	if err := k8s.Create(ctx, u.p); err != nil {
		return fmt.Errorf("create %s: %w", name, err)
	}
	return nil
}

// steps calls the functions in order, until one fails.
func steps(do ...func() error) error {
	for _, step := range do {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// at returns a step that waits until the plan has that phase and state; asks returns a step that changes the spec of the plan.
func (u *use) at(ctx context.Context, phase v1alpha1.PlanPhase, state v1alpha1.PlanState) func() error {
	return func() error {
		return u.awaits(ctx, func(p *v1alpha1.Plan) bool { return p.Status.CurrentPhase == phase && p.Status.State == state })
	}
}

// awaits waits until so returns true for the plan. It polls at a low rate, because there are many clients and the plans need the CPU. It gives up
// when the row times out.
func (u *use) awaits(ctx context.Context, so func(*v1alpha1.Plan) bool) error {
	ticker := time.NewTicker(10 * interval)
	defer ticker.Stop()
	for {
		now, err := planNow(ctx, u.p)
		if err == nil && now.Status.ObservedGeneration == now.Generation && so(now) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: want final state %s %s, got %s: %w", u.p.Name, u.phase, u.state, tellPlan(now), ctx.Err())
		case <-ticker.C:
		}
	}
}

func (u *use) asks(ctx context.Context, patch string) func() error {
	return func() error { return apply(ctx, u.p, patch) }
}

func (u *use) ends(ctx context.Context) func() error { return u.at(ctx, u.phase, u.state) }

func straight(ctx context.Context, u *use) error { return u.ends(ctx)() }

func gated(ctx context.Context, u *use) error {
	return steps(
		u.at(ctx, v1alpha1.PhaseStrategize, v1alpha1.PlanComplete), u.asks(ctx, toExecute),
		u.at(ctx, v1alpha1.PhaseExecute, v1alpha1.PlanComplete), u.asks(ctx, toApply), u.ends(ctx),
	)
}

func calledOffMeanwhile(ctx context.Context, u *use) error {
	return steps(u.at(ctx, v1alpha1.PhaseExecute, v1alpha1.PlanProcessing), u.asks(ctx, calledOff), u.ends(ctx))
}

func reverted(ctx context.Context, u *use) error {
	again := func() error {
		return u.awaits(ctx, func(p *v1alpha1.Plan) bool {
			return p.Status.Attempt == u.attempt && p.Status.State == v1alpha1.PlanComplete
		})
	}
	return steps(u.at(ctx, v1alpha1.PhaseExecute, v1alpha1.PlanComplete), u.asks(ctx, back), again, u.asks(ctx, toApply), u.ends(ctx))
}

func retried(ctx context.Context, u *use) error {
	return steps(u.at(ctx, v1alpha1.PhaseApply, v1alpha1.PlanErrored), u.asks(ctx, onceMore), u.ends(ctx))
}

// retriedMeanwhile requests a retry while the run is in progress: Berth stops the run and ignores its result.
func retriedMeanwhile(ctx context.Context, u *use) error {
	return steps(u.at(ctx, v1alpha1.PhaseExecute, v1alpha1.PlanProcessing), u.asks(ctx, onceMore), u.ends(ctx))
}
