// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package races

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// phaseScript records its start under a name that is unique for each strategy, plan, phase and attempt. It fails in the phases and attempts that
// ARG_FAIL lists, such as "Apply-1". In those that ARG_HOLD lists, it waits for the gate file of its plan before it exits.
const phaseScript = `code=0; after=
case " $ARG_FAIL " in *" $ARG_PHASE-$ARG_ATTEMPT "*) code=1;; esac
case " $ARG_HOLD " in *" $ARG_PHASE-$ARG_ATTEMPT "*) after="$1/$ARG_PLAN.gate";; esac
exec "$0" -dir "$1" -name "$2.$ARG_PLAN.$ARG_PHASE.$ARG_ATTEMPT" -exit $code -after "$after"`

// createStrategies creates the strategies that the plans of the row run. The breakers of these strategies never open.
func createStrategies(ctx context.Context, names ...string) {
	GinkgoHelper()
	for _, name := range names {
		s := &v1alpha1.Strategy{ObjectMeta: metav1.ObjectMeta{Namespace: env.namespace, Name: name}}
		s.Spec.Process.Command = []string{"/bin/sh", "-c", phaseScript, filepath.Join(programs, "workload"), env.dir, name}
		s.Spec.Breaker.FailureThreshold = ptr.To[int32](100000)
		s.Spec.HistoryLimit = ptr.To[int32](10000)
		Expect(k8s.Create(ctx, s)).To(Succeed())
	}
}

// newAction returns an action whose phases run these strategies. If the list of a phase is empty, the action does not have this phase.
func newAction(name string, strategize, execute, apply []string) *v1alpha1.Action {
	a := &v1alpha1.Action{ObjectMeta: metav1.ObjectMeta{Namespace: env.namespace, Name: name}}
	a.Spec.Arguments = []v1alpha1.ActionArgument{{Name: "fail"}, {Name: "hold"}}
	phase := func(strategies []string) *v1alpha1.PhaseSpec {
		if len(strategies) == 0 {
			return nil
		}
		spec := &v1alpha1.PhaseSpec{}
		for _, name := range strategies {
			spec.Strategies = append(spec.Strategies, v1alpha1.PhaseStrategy{Name: name})
		}
		return spec
	}
	a.Spec.Strategize, a.Spec.Execute, a.Spec.Apply = phase(strategize), phase(execute), phase(apply)
	return a
}

// newPlan returns a plan of an action; arguments are alternating names and values.
func newPlan(a *v1alpha1.Action, name string, target v1alpha1.PlanPhase, arguments ...string) *v1alpha1.Plan {
	p := &v1alpha1.Plan{ObjectMeta: metav1.ObjectMeta{Namespace: a.Namespace, Name: name}}
	p.Spec.ActionRef.Name, p.Spec.TargetPhase = a.Name, target
	for pair := range slices.Chunk(arguments, 2) {
		p.Spec.Arguments = append(p.Spec.Arguments, v1alpha1.RunArgument{Name: pair[0], Value: pair[1]})
	}
	return p
}

// planNow reads the current plan.
func planNow(ctx context.Context, p *v1alpha1.Plan) (*v1alpha1.Plan, error) {
	fresh := &v1alpha1.Plan{}
	return fresh, k8s.Get(ctx, client.ObjectKeyFromObject(p), fresh)
}

// waitForPlan waits until a plan has that phase and state, and its status describes its current spec. It returns an error instead of failing, for
// goroutines.
func waitForPlan(ctx context.Context, p *v1alpha1.Plan, phase v1alpha1.PlanPhase, state v1alpha1.PlanState) (*v1alpha1.Plan, error) {
	var last *v1alpha1.Plan
	err := pollUntil(ctx, func() (bool, error) {
		var err error
		last, err = planNow(ctx, p)
		s := last.Status
		return err == nil && s.ObservedGeneration == last.Generation && s.CurrentPhase == phase && s.State == state, err
	})
	if err != nil {
		return last, fmt.Errorf("%s: want %s %s, got %s: %w", p.Name, phase, state, describePlan(last), err)
	}
	return last, nil
}

func expectPlan(ctx context.Context, p *v1alpha1.Plan, phase v1alpha1.PlanPhase, state v1alpha1.PlanState) *v1alpha1.Plan {
	GinkgoHelper()
	last, err := waitForPlan(ctx, p, phase, state)
	Expect(err).NotTo(HaveOccurred())
	return last
}

func describePlan(p *v1alpha1.Plan) string {
	s := p.Status
	return fmt.Sprintf("%s %s, attempt %d, waiting %q, runs %v, history %s", s.CurrentPhase, s.State, s.Attempt, s.Waiting, s.Runs, planHistory(p))
}

// planHistory returns the history of a plan in short form: every change of phase, attempt or state.
func planHistory(p *v1alpha1.Plan) string {
	var words []string
	for _, entry := range p.Status.History {
		words = append(words, fmt.Sprintf("%s %d %s", entry.Phase, entry.Attempt, entry.State))
	}
	return strings.Join(words, ", ")
}

const (
	// executePatch and applyPatch approve a phase that waits in the first attempt; applyAgainPatch approves all phases of the second attempt.
	executePatch    = `{"spec":{"approval":{"phase":"Execute","attempt":1}}}`
	applyPatch      = `{"spec":{"approval":{"phase":"Apply","attempt":1}}}`
	applyAgainPatch = `{"spec":{"approval":{"phase":"Execute","attempt":2,"toPhase":"Apply"}}}`
	cancelPatch     = `{"spec":{"state":"Cancelled"}}`
	// retryExecutePatch, retryApplyPatch and revertPatch name the phase of the first attempt that their user saw.
	retryExecutePatch = `{"spec":{"retryToken":"once more","retryFrom":{"phase":"Execute","attempt":1}}}`
	retryApplyPatch   = `{"spec":{"retryToken":"once more","retryFrom":{"phase":"Apply","attempt":1}}}`
	revertPatch       = `{"spec":{"targetPhase":"Strategize","revert":{"token":"back","from":{"phase":"Execute","attempt":1}}}}`
)

// executions returns how often each strategy was executed for each plan, phase and attempt. The counts come from the processes and not from the
// status of the objects.
func executions() map[string]int {
	GinkgoHelper()
	times := map[string]int{}
	for _, note := range notes("starts", "") {
		times[note.name]++
	}
	return times
}

// executionKey returns the key for a strategy, plan, phase and attempt in the result of executions.
func executionKey(strategy string, p *v1alpha1.Plan, phase v1alpha1.PlanPhase, attempt int) string {
	return fmt.Sprintf("%s.%s.%s.%d", strategy, p.Name, phase, attempt)
}

// expectNoRepeatedExecution fails if a strategy was executed more than once for one plan, phase and attempt.
func expectNoRepeatedExecution() {
	GinkgoHelper()
	for name, times := range executions() {
		Expect(times).To(Equal(1), "takes effect once per plan and attempt: %s", name)
	}
}

// clearPlans deletes all plans and actions of the row and, as the garbage collector of a cluster does, their runs. It waits until no plan and no run
// exists any more.
func clearPlans(ctx context.Context) {
	GinkgoHelper()
	for _, object := range []client.Object{&v1alpha1.Plan{}, &v1alpha1.Action{}, &v1alpha1.StrategyRun{}} {
		Expect(k8s.DeleteAllOf(ctx, object, client.InNamespace(env.namespace))).To(Succeed())
	}
	Eventually(ctx, func(g Gomega) {
		var plans v1alpha1.PlanList
		var runs v1alpha1.StrategyRunList
		g.Expect(k8s.List(ctx, &plans, client.InNamespace(env.namespace))).To(Succeed())
		g.Expect(plans.Items).To(BeEmpty())
		g.Expect(k8s.List(ctx, &runs, client.InNamespace(env.namespace), client.Limit(1))).To(Succeed())
		g.Expect(runs.Items).To(BeEmpty())
	}).Should(Succeed())
}

// planWatch collects the states of all plans and their runs that a client sees if it watches from the beginning.
type planWatch struct {
	mu     sync.Mutex
	states map[types.UID][]*v1alpha1.Plan
	living map[string]map[string]bool
	most   map[string]int
}

// watchPlans records all changes of the plans of the row, until the row ends.
func watchPlans(ctx context.Context) *planWatch {
	GinkgoHelper()
	w := &planWatch{states: map[types.UID][]*v1alpha1.Plan{}, living: map[string]map[string]bool{}, most: map[string]int{}}
	var ended sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	for _, list := range []client.ObjectList{&v1alpha1.PlanList{}, &v1alpha1.StrategyRunList{}} {
		Expect(k8s.List(ctx, list, client.InNamespace(env.namespace))).To(Succeed())
		watcher, err := k8s.Watch(ctx, list, client.InNamespace(env.namespace),
			&client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: list.GetResourceVersion()}})
		Expect(err).NotTo(HaveOccurred())
		ended.Go(func() {
			defer watcher.Stop()
			for event := range watcher.ResultChan() {
				w.record(event.Object)
			}
		})
	}
	DeferCleanup(func() {
		cancel()
		ended.Wait()
	})
	return w
}

func (w *planWatch) record(object any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch o := object.(type) {
	case *v1alpha1.Plan:
		w.states[o.UID] = append(w.states[o.UID], o.DeepCopy())
	case *v1alpha1.StrategyRun:
		plan := o.Labels[v1alpha1.LabelPlan]
		if w.living[plan] == nil {
			w.living[plan] = map[string]bool{}
		}
		if o.Status.Outcome == "" {
			w.living[plan][o.Name] = true
		} else {
			delete(w.living[plan], o.Name)
		}
		w.most[plan] = max(w.most[plan], len(w.living[plan]))
	}
}

// mostAtOnce returns the highest number of runs of one plan that were active at the same time.
func (w *planWatch) mostAtOnce() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Max(append(slices.Collect(maps.Values(w.most)), 0))
}

// statesOf waits until the watch has delivered the resource version of p. It returns all states of that plan that the watch has delivered.
func (w *planWatch) statesOf(ctx context.Context, p *v1alpha1.Plan) []*v1alpha1.Plan {
	GinkgoHelper()
	var seen []*v1alpha1.Plan
	Eventually(ctx, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		seen = slices.Clone(w.states[p.UID])
		return slices.ContainsFunc(seen, func(o *v1alpha1.Plan) bool { return o.ResourceVersion == p.ResourceVersion })
	}).Should(BeTrue(), "the watch reaches the last version of %s", p.Name)
	return seen
}

// expectLegalHistory fails unless the transition table permits every step in the history of a plan.
func expectLegalHistory(p *v1alpha1.Plan) {
	GinkgoHelper()
	history := p.Status.History
	for i := 1; i < len(history); i++ {
		Expect(isLegalStep(history[i-1], history[i])).To(BeTrue(), "only steps of the transition table, and none twice: %s: %s", p.Name, planHistory(p))
	}
}

func isLegalStep(a, b v1alpha1.PlanHistoryEntry) bool {
	same, next := a.Phase == b.Phase && a.Attempt == b.Attempt, a.Attempt+1 == b.Attempt
	ended := a.State == v1alpha1.PlanCancelled
	switch b.State {
	case v1alpha1.PlanComplete, v1alpha1.PlanErrored, v1alpha1.PlanApplied:
		return same && a.State == v1alpha1.PlanProcessing && (b.State == v1alpha1.PlanErrored || (b.State == v1alpha1.PlanApplied) == (b.Phase == v1alpha1.PhaseApply))
	case v1alpha1.PlanProcessing:
		follows := map[v1alpha1.PlanPhase]v1alpha1.PlanPhase{v1alpha1.PhaseStrategize: v1alpha1.PhaseExecute, v1alpha1.PhaseExecute: v1alpha1.PhaseApply}
		advanced := a.State == v1alpha1.PlanComplete && a.Attempt == b.Attempt && follows[a.Phase] == b.Phase
		retried := next && a.Phase == b.Phase && (a.State == v1alpha1.PlanProcessing || a.State == v1alpha1.PlanErrored)
		reverted := next && b.Phase == v1alpha1.PhaseStrategize && !ended
		return advanced || retried || reverted
	case v1alpha1.PlanCancelled:
		return same && !ended && a.State != v1alpha1.PlanApplied
	default:
		return false
	}
}
