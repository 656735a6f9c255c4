// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package races

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/go-logr/logr"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/runtime"
)

var _ = row("R14-plans", "concurrent creates of plans: all different names exist, and of the creates of one name exactly one succeeds", func(ctx context.Context) {
	const creators, names = 20, 3
	createStrategies(ctx, "effect")
	action := newAction("act", nil, nil, []string{"effect"})
	Expect(k8s.Create(ctx, action)).To(Succeed())
	var won, winners [names]atomic.Int32
	inParallel(creators, func(i int) error {
		if err := k8s.Create(ctx, newPlan(action, fmt.Sprintf("mine-%d", i), v1alpha1.PhaseApply)); err != nil {
			return err
		}
		for n := range names {
			shared := newPlan(action, fmt.Sprintf("shared-%d", n), v1alpha1.PhaseApply, "hold", strconv.Itoa(i))
			switch err := k8s.Create(ctx, shared); {
			case err == nil:
				won[n].Add(1)
				winners[n].Store(int32(i))
			case !apierrors.IsAlreadyExists(err):
				return err
			}
		}
		return nil
	})
	for n := range names {
		Expect(won[n].Load()).To(Equal(int32(1)), "exactly one create succeeds: shared-%d", n)
		p := expectPlan(ctx, newPlan(action, fmt.Sprintf("shared-%d", n), ""), v1alpha1.PhaseApply, v1alpha1.PlanApplied)
		Expect(p.Spec.Arguments[0].Value).To(Equal(strconv.Itoa(int(winners[n].Load()))), "exactly one create succeeds, and its spec is kept")
		Expect(p.Generation).To(Equal(int64(1)))
	}
	for i := range creators {
		expectPlan(ctx, newPlan(action, fmt.Sprintf("mine-%d", i), ""), v1alpha1.PhaseApply, v1alpha1.PlanApplied)
	}
	Expect(executions()).To(HaveLen(creators + names))
	expectNoRepeatedExecution()
	clearPlans(ctx)
})

var _ = row("R15", "an action that is created and edited while it is used: every plan is pinned to one generation of it, and N uses make N plans", func(ctx context.Context) {
	const uses, edits = 40, 30
	createStrategies(ctx, "think", "work-0", "work-1", "work-2")
	// Generation n of the action allows n reversions, and executes a strategy that is derived from n.
	work := func(generation int64) string { return fmt.Sprintf("work-%d", generation%3) }
	action := newAction("act", []string{"think"}, []string{work(1)}, nil)
	action.Spec.MaxReversions = ptr.To[int32](1)
	plans := make([]*v1alpha1.Plan, uses)
	for i := range plans {
		plans[i] = newPlan(action, fmt.Sprintf("use-%02d", i), v1alpha1.PhaseStrategize)
	}
	namespace := plans[0].Namespace // read here, because each Create below writes to its Plan concurrently
	var editor sync.WaitGroup
	var failed error
	editor.Go(func() { // the action is created while the first plans are created
		failed = k8s.Create(ctx, action.DeepCopy())
		for n := int64(2); n <= edits && failed == nil; n++ {
			failed = patchObject(ctx, action, fmt.Sprintf(`{"spec":{"maxReversions":%d,"execute":{"strategies":[{"name":%q}]}}}`, n, work(n)))
			if failed == nil { // so that the edits are spread over the plans, and not finished before the plans begin
				failed = waitForPinned(ctx, namespace, int(n)-1)
			}
		}
	})
	inParallel(4, func(i int) error {
		for n := i; n < uses; n += 4 {
			if err := k8s.Create(ctx, plans[n]); err != nil {
				return err
			}
		}
		return nil
	})
	editor.Wait()
	Expect(failed).NotTo(HaveOccurred())
	generations := map[types.UID]int64{}
	for _, p := range plans {
		pinned := expectPlan(ctx, p, v1alpha1.PhaseStrategize, v1alpha1.PlanComplete).Status.Pinned
		generations[p.UID] = pinned.ActionGeneration
		Expect(int64(pinned.MaxReversions)).To(Equal(pinned.ActionGeneration), "pinned to one generation: %s", p.Name)
		Expect(pinned.Phases[1].Strategies[0].Name).To(Equal(work(pinned.ActionGeneration)), "pinned to one generation: %s", p.Name)
	}
	for _, p := range plans { // later changes of the action do not affect the plans
		Expect(patchObject(ctx, p, executePatch)).To(Succeed())
	}
	for _, p := range plans {
		done := expectPlan(ctx, p, v1alpha1.PhaseExecute, v1alpha1.PlanComplete)
		Expect(done.Status.Pinned.ActionGeneration).To(Equal(generations[p.UID]), "pinned to one generation permanently: %s", p.Name)
		Expect(executions()).To(HaveKey(executionKey(work(generations[p.UID]), p, v1alpha1.PhaseExecute, 1)), "the pinned strategy was executed")
	}
	Expect(generations).To(HaveLen(uses), "as many plans as uses")
	Expect(executions()).To(HaveLen(2 * uses))
	expectNoRepeatedExecution()
	clearPlans(ctx)
})

// waitForPinned waits until that many plans of a namespace are pinned.
func waitForPinned(ctx context.Context, namespace string, wanted int) error {
	return wait.PollUntilContextTimeout(ctx, interval, patience, true, func(ctx context.Context) (bool, error) {
		list := &v1alpha1.PlanList{}
		err := k8s.List(ctx, list, client.InNamespace(namespace))
		pinned := 0
		for i := range list.Items {
			if list.Items[i].Status.Pinned != nil {
				pinned++
			}
		}
		return pinned >= wanted, err
	})
}

var _ = row("R16-plans", "reads of a plan during writes are never older than the reader's own writes", func(ctx context.Context) {
	const writes = 100
	createStrategies(ctx, "think")
	action := newAction("act", []string{"think"}, nil, []string{"think"})
	Expect(k8s.Create(ctx, action)).To(Succeed())
	p := newPlan(action, "read", v1alpha1.PhaseStrategize)
	Expect(k8s.Create(ctx, p)).To(Succeed())
	expectPlan(ctx, p, v1alpha1.PhaseStrategize, v1alpha1.PlanComplete)
	for n := 1; n <= writes; n++ {
		Expect(patchObject(ctx, p, fmt.Sprintf(`{"spec":{"retryToken":"%d","retryFrom":{"phase":"Strategize","attempt":1}}}`, n))).To(Succeed())
		for range 3 {
			o, err := planNow(ctx, p)
			Expect(err).NotTo(HaveOccurred())
			Expect(o.Spec.RetryToken).To(Equal(strconv.Itoa(n)), "the spec is older than the last write")
			if seen := o.Status.ObservedRetryToken; o.Status.ObservedGeneration == o.Generation && seen != strconv.Itoa(n) {
				Fail(fmt.Sprintf("the status claims generation %d, and is older than that: token %s of %d", o.Generation, seen, n))
			}
			for _, c := range o.Status.Conditions {
				Expect(c.ObservedGeneration).To(BeNumerically("<=", o.Status.ObservedGeneration), "a condition is not newer than its status")
			}
		}
	}
	last := expectPlan(ctx, p, v1alpha1.PhaseStrategize, v1alpha1.PlanComplete)
	Expect(last.Status.Attempt).To(Equal(int32(1)), "a plan that has succeeded is not retried")
	expectNoRepeatedExecution()
	clearPlans(ctx)
})

var _ = row("R33-plans", "20 plans with one idempotency key: exactly one of them runs, whatever happens to managers", func(ctx context.Context) {
	const callers, keys = 20, 3
	createStrategies(ctx, "effect")
	action := newAction("act", nil, nil, []string{"effect"})
	Expect(k8s.Create(ctx, action)).To(Succeed())
	var restarts sync.WaitGroup
	plans := make([][]*v1alpha1.Plan, keys)
	for key := range keys {
		plans[key] = make([]*v1alpha1.Plan, callers)
		restarts.Go(func() {
			defer GinkgoRecover()
			inParallel(callers, func(i int) error {
				p := newPlan(action, fmt.Sprintf("caller-%02d-of-%d", i, key), v1alpha1.PhaseApply)
				p.Spec.IdempotencyKey = strconv.Itoa(key)
				plans[key][i] = p
				return k8s.Create(ctx, p)
			})
		})
		env.stopManager()
		env.start()
	}
	restarts.Wait()
	for key := range keys {
		var first *v1alpha1.Plan
		Eventually(ctx, func(g Gomega) {
			first = nil
			for _, p := range plans[key] {
				now, err := planNow(ctx, p)
				g.Expect(err).NotTo(HaveOccurred())
				if now.Status.DuplicateOf == nil {
					g.Expect(first).To(BeNil(), "exactly one plan per key runs")
					g.Expect(now.Status.State).To(Equal(v1alpha1.PlanApplied), "exactly one plan per key runs")
					first = now
				}
			}
			g.Expect(first).NotTo(BeNil(), "exactly one plan per key runs")
		}).Should(Succeed())
		for _, p := range plans[key] {
			now, err := planNow(ctx, p)
			Expect(err).NotTo(HaveOccurred())
			if now.UID != first.UID {
				Expect(now.Status.DuplicateOf.UID).To(Equal(first.UID), "all duplicates refer to the plan that runs")
				Expect(now.Status.State).To(Equal(v1alpha1.PlanQueued))
			}
		}
	}
	Expect(executions()).To(HaveLen(keys), "exactly one plan per key runs")
	expectNoRepeatedExecution()
	clearPlans(ctx)
})

var _ = row("S16", "no transition happens twice, a manual plan never advances by itself, and an error is never reported as applied", func(ctx context.Context) {
	const plans, clients = 4, 10
	createStrategies(ctx, "think", "work", "effect")
	action := newAction("act", []string{"think"}, []string{"work"}, []string{"effect"})
	Expect(k8s.Create(ctx, action)).To(Succeed())
	another := env.runManager(runtime.NewRegistry(withOwnCapabilities{eventlessRuntime{env.rt}}, logr.Discard()))
	defer func() { another() }()
	seen := watchPlans(ctx)
	manual := make([]*v1alpha1.Plan, plans)
	for i := range manual {
		manual[i] = newPlan(action, fmt.Sprintf("manual-%d", i), v1alpha1.PhaseStrategize, "fail", "Apply-1")
		Expect(k8s.Create(ctx, manual[i])).To(Succeed())
	}
	// expectUnchanged checks that all plans keep their phase and state although both managers are replaced and the action is edited.
	expectUnchanged := func(phase v1alpha1.PlanPhase, state v1alpha1.PlanState) {
		GinkgoHelper()
		for _, p := range manual {
			expectPlan(ctx, p, phase, state)
		}
		another()
		env.stopManager()
		env.start()
		another = env.runManager(runtime.NewRegistry(withOwnCapabilities{eventlessRuntime{env.rt}}, logr.Discard()))
		Expect(patchObject(ctx, action, fmt.Sprintf(`{"spec":{"description":"after %s %s"}}`, phase, state))).To(Succeed())
		Consistently(ctx, func(g Gomega) {
			for _, p := range manual {
				now, err := planNow(ctx, p)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(now.Status.CurrentPhase).To(Equal(phase), "a manual plan never advances by itself")
				g.Expect(now.Status.State).To(Equal(state), "a manual plan never advances by itself")
			}
		}).Should(Succeed())
	}
	patchAll := func(patch string) { // sends the same patch to every plan
		GinkgoHelper()
		inParallel(clients, func(i int) error { return patchObject(ctx, manual[i%plans], patch) })
	}
	expectUnchanged(v1alpha1.PhaseStrategize, v1alpha1.PlanComplete)
	patchAll(executePatch)
	expectUnchanged(v1alpha1.PhaseExecute, v1alpha1.PlanComplete)
	patchAll(applyPatch)
	expectUnchanged(v1alpha1.PhaseApply, v1alpha1.PlanErrored)
	patchAll(retryApplyPatch)
	for _, p := range manual {
		last := expectPlan(ctx, p, v1alpha1.PhaseApply, v1alpha1.PlanApplied)
		Expect(planHistory(last)).To(Equal("Strategize 1 Processing, Strategize 1 Complete, Execute 1 Processing, Execute 1 Complete, "+
			"Apply 1 Processing, Apply 1 Errored, Apply 2 Processing, Apply 2 Applied"), "no transition happens twice")
		for _, state := range seen.statesOf(ctx, last) {
			Expect(state.Status.State == v1alpha1.PlanApplied && state.Status.Attempt == 1).To(BeFalse(), "an error is never reported as applied")
			approved := v1alpha1.PhaseStrategize
			if state.Spec.Approval != nil {
				approved = state.Spec.Approval.Phase
			}
			Expect(phaseRank(state.Status.CurrentPhase)).To(BeNumerically("<=", phaseRank(approved)), "a manual plan never advances by itself")
		}
	}
	Expect(executions()).To(HaveLen(4 * plans))
	expectNoRepeatedExecution()
	clearPlans(ctx)
})

// phaseRank returns the position of a phase in the order of phases.
func phaseRank(phase v1alpha1.PlanPhase) int {
	return map[v1alpha1.PlanPhase]int{v1alpha1.PhaseExecute: 1, v1alpha1.PhaseApply: 2}[phase]
}

// runsOfPlan returns the runs of a plan.
func runsOfPlan(ctx context.Context, p *v1alpha1.Plan) ([]v1alpha1.StrategyRun, error) {
	list := &v1alpha1.StrategyRunList{}
	err := k8s.List(ctx, list, client.InNamespace(p.Namespace), client.MatchingLabels{v1alpha1.LabelPlan: p.Name})
	return list.Items, err
}
