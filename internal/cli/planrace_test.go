// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/manager"
	plans "github.com/berth-dev/berth/internal/plan"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/fake"
	"github.com/berth-dev/berth/test/testenv"
)

// racePlansVariable is the number of plans; the default is 24. make approvals uses 200.
const racePlansVariable = "RACE_PLANS"

const (
	// raceRounds is how often each client looks at all plans, raceBatch how many plans it looks at before it acts on what it saw.
	raceRounds = 2
	raceBatch  = 8
)

// sight is what a client saw when it looked at a plan, and what it requested: to approve the phase that waited, or to retry or revert the current phase.
type sight struct {
	request string // approve, retry or revert
	plan    string
	phase   v1alpha1.PlanPhase
	attempt int32
}

// requests are the accepted requests of all clients, with the interface of each.
type requests struct {
	mu sync.Mutex
	by map[sight]string
	// repeated are accepted requests of clients that saw something else. Another client must have sent the same request before.
	repeated []sight
}

func (r *requests) repeat(s sight) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.repeated = append(r.repeated, s)
}

func (r *requests) add(s sight, by string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.by[s] = by
}

// approver is a client that approves, through one of several interfaces, phases that it saw some time before.
type approver struct {
	g        Gomega
	api      client.Client
	app      app
	tools    *toolClient
	out      *output
	random   *rand.Rand
	accepted *requests
}

// TestPlanApprove_RunsOnlyPhasesThatApproverSaw lets two clients look at plans, and approve, retry and revert them later, in a random order, through the
// command line, the tools for agents and raw patches. Meanwhile the plans change. Each phase that starts must be one that a client saw waiting and approved.
func TestPlanApprove_RunsOnlyPhasesThatApproverSaw(t *testing.T) {
	g := NewWithT(t)
	environment := testenv.New(filepath.Join("..", ".."))
	config, err := environment.Start()
	g.Expect(err).NotTo(HaveOccurred(), "start an API server")
	t.Cleanup(func() { g.Expect(environment.Stop()).To(Succeed()) })
	api, err := client.NewWithWatch(config, client.Options{Scheme: manager.Scheme()})
	g.Expect(err).NotTo(HaveOccurred())
	runs := runManagerWithoutPrograms(t, config, api)
	count := racePlans(t)
	createRacePlans(t, api, count)

	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	accepted := &requests{by: map[sight]string{}}
	var clients sync.WaitGroup
	for i := range uint64(2) {
		f := newFixture()
		f.api = api
		a := &approver{g: g, api: api, app: *f.app, tools: newToolClient(t, f, mcpFlags{allowApprove: true}), out: f.out, random: rand.New(rand.NewPCG(seed, i)), accepted: accepted}
		clients.Go(func() { a.work(t.Context(), count) })
	}
	clients.Wait()
	if t.Failed() {
		return
	}

	list := &v1alpha1.PlanList{}
	g.Eventually(func(g Gomega) {
		g.Expect(api.List(t.Context(), list)).To(Succeed())
		for _, plan := range list.Items {
			rests := plan.Status.ObservedGeneration == plan.Generation && !meta.IsStatusConditionTrue(plan.Status.Conditions, v1alpha1.ConditionReconciling)
			g.Expect(rests).To(BeTrue(), plan.Name)
		}
	}, timeout).Should(Succeed())
	g.Expect(runs.all()).NotTo(BeEmpty())
	for _, again := range accepted.repeated {
		g.Expect(accepted.by).To(HaveKey(again), "the API server accepted an approval of what did not wait")
	}
	started, counts := map[string]int{}, map[string]int{}
	for run := range runs.all() {
		request, by := accepted.cause(run)
		g.Expect(by).NotTo(BeEmpty(), "%s of attempt %d of %s ran, and no client saw what led to that", run.phase, run.attempt, run.plan)
		counts[request]++
		started[by]++
	}
	t.Logf("%d plans, accepted requests: %d, phases that ran by request: %v, by interface: %v", count, len(accepted.by), counts, started)
	for _, by := range []string{"patch", "server-side apply", "tool", "command", "command that looks"} {
		g.Expect(started).To(HaveKey(by), "requests through every interface had an effect")
	}
}

// racePlans returns the number of plans.
func racePlans(t *testing.T) int {
	t.Helper()
	text := os.Getenv(racePlansVariable)
	if text == "" {
		return 24
	}
	count, err := strconv.Atoi(text)
	NewWithT(t).Expect(err).NotTo(HaveOccurred(), racePlansVariable)
	return count
}

// cause returns the request that led to a phase that ran, and the interface of the request: the approval of this phase in this attempt, or the retry or the
// revert that began the attempt. The first attempt begins without a request at Strategize.
func (r *requests) cause(ran sight) (request, by string) {
	approve := ran
	approve.request = "approve"
	retry := sight{"retry", ran.plan, ran.phase, ran.attempt - 1}
	switch {
	case r.by[approve] != "":
		return approve.request, r.by[approve]
	case r.by[retry] != "":
		return retry.request, r.by[retry]
	case ran.phase == v1alpha1.PhaseStrategize && ran.attempt == 1:
		return "created", "create"
	case ran.phase != v1alpha1.PhaseStrategize:
		return "", ""
	}
	for _, from := range planPhases {
		if revert := (sight{"revert", ran.plan, from, ran.attempt - 1}); r.by[revert] != "" {
			return revert.request, r.by[revert]
		}
	}
	return "", ""
}

// phaseRuns are the phases that ran, as a watch of the runs reports them.
type phaseRuns struct {
	mu    sync.Mutex
	found map[sight]bool
}

func (r *phaseRuns) all() map[sight]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.found)
}

// runName matches the name of a run: the name of the plan, its UID, the attempt, the phase, and the index of the run.
var runName = regexp.MustCompile(`^(.*)-[0-9a-f]{8}-(\d+)-([a-z]+)-\d+$`)

func (r *phaseRuns) add(name string) {
	found := runName.FindStringSubmatch(name)
	attempt, err := strconv.ParseInt(found[2], 10, 32)
	phase, failed := parsePhase(found[3])
	if err != nil || failed != nil {
		panic(name)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.found[sight{plan: found[1], phase: phase, attempt: int32(attempt)}] = true
}

// runManagerWithoutPrograms runs a manager whose programs exit soon after their start, one in three with code 1. It returns the phases that run.
func runManagerWithoutPrograms(t *testing.T, config *rest.Config, api client.WithWatch) *phaseRuns {
	t.Helper()
	g := NewWithT(t)
	ctx, cancel := context.WithCancel(context.Background())
	var ended sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		ended.Wait()
	})
	programs := fake.New(ctx, clock.RealClock{})
	mgr, err := manager.New(config, manager.Options{Runtimes: runtime.NewRegistry(programs, logr.Discard()), Logger: logr.Discard(), ShutdownTimeout: timeout})
	g.Expect(err).NotTo(HaveOccurred())
	ended.Go(func() {
		if err := mgr.Start(ctx); err != nil {
			t.Errorf("run the manager: %v", err)
		}
	})
	runs, err := api.Watch(ctx, &v1alpha1.StrategyRunList{})
	g.Expect(err).NotTo(HaveOccurred())
	ran := &phaseRuns{found: map[sight]bool{}}
	ended.Go(func() {
		defer runs.Stop()
		for event := range runs.ResultChan() {
			if run, ok := event.Object.(*v1alpha1.StrategyRun); ok && run.Status.Process != nil && run.Status.Outcome == "" {
				ran.add(run.Name)
				code := int32(max(rand.IntN(3), 1) - 1) // 0 or 1
				programs.Exit(run.UID, facts.Exit{Known: true, Code: code})
			}
		}
	})
	return ran
}

// createRacePlans creates plans that wait for approval of Execute, and then of Apply.
func createRacePlans(t *testing.T, api client.Client, count int) {
	t.Helper()
	g := NewWithT(t)
	strategy := &v1alpha1.Strategy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "work"}}
	strategy.Spec.Process.Command = []string{"work"}
	strategy.Spec.Breaker.FailureThreshold = ptr.To[int32](100_000)
	g.Expect(api.Create(t.Context(), strategy)).To(Succeed())
	phase := &v1alpha1.PhaseSpec{Strategies: []v1alpha1.PhaseStrategy{{Name: "work"}}}
	action := &v1alpha1.Action{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "act"}}
	action.Spec.Execute, action.Spec.Apply, action.Spec.MaxReversions = phase, phase, ptr.To[int32](10)
	g.Expect(api.Create(t.Context(), action)).To(Succeed())
	for i := range count {
		plan := &v1alpha1.Plan{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("plan-%03d", i)}}
		plan.Spec.ActionRef.Name = action.Name
		g.Expect(api.Create(t.Context(), plan)).To(Succeed())
	}
	g.Eventually(func(g Gomega) {
		list := &v1alpha1.PlanList{}
		g.Expect(api.List(t.Context(), list)).To(Succeed())
		for _, plan := range list.Items {
			g.Expect(plans.Awaited(&plan.Spec, &plan.Status)).To(Equal(v1alpha1.PhaseExecute), plan.Name)
		}
	}, timeout).Should(Succeed())
}

// work looks at all plans in a random order, one batch after another, and acts on the plans of each batch in another random order.
func (a *approver) work(ctx context.Context, count int) {
	for range raceRounds {
		order := a.random.Perm(count)
		for len(order) > 0 {
			batch := order[:min(raceBatch, len(order))]
			order = order[len(batch):]
			var seen []*v1alpha1.Plan
			for _, i := range batch {
				plan := &v1alpha1.Plan{}
				a.g.Expect(a.api.Get(ctx, client.ObjectKey{Namespace: "default", Name: fmt.Sprintf("plan-%03d", i)}, plan)).To(Succeed())
				seen = append(seen, plan)
			}
			a.random.Shuffle(len(seen), func(i, j int) { seen[i], seen[j] = seen[j], seen[i] })
			for _, plan := range seen {
				a.act(ctx, plan)
			}
		}
	}
}

// act sends a request for what the client saw when it looked at the plan: a revert, a retry or an approval, through a random interface.
func (a *approver) act(ctx context.Context, plan *v1alpha1.Plan) {
	s := &plan.Status
	token, now := fmt.Sprint(a.random.Uint64()), map[string]any{"phase": s.CurrentPhase, "attempt": s.Attempt}
	switch choice := a.random.IntN(10); {
	case choice == 0:
		revert := map[string]any{"revert": map[string]any{"token": token, "from": now}}
		a.send(ctx, sight{"revert", plan.Name, s.CurrentPhase, s.Attempt}, revert)
	case choice == 1 || s.State == v1alpha1.PlanErrored && choice < 6:
		retry := map[string]any{"retryToken": token, "retryFrom": now}
		a.send(ctx, sight{"retry", plan.Name, s.CurrentPhase, s.Attempt}, retry)
	default:
		waits := plans.Awaited(&plan.Spec, s)
		if waits == "" {
			return
		}
		a.raise(ctx, plan.Name, waits)
		if waits == v1alpha1.PhaseExecute && choice == 2 {
			a.guess(ctx, plan)
			return
		}
		approval := map[string]any{"approval": map[string]any{"phase": waits, "attempt": s.Attempt}}
		a.send(ctx, sight{"approve", plan.Name, waits, s.Attempt}, approval)
	}
}

// send sends a request through a random interface, and records what the client saw if the request was accepted. spec is the change of the spec for raw requests.
func (a *approver) send(ctx context.Context, saw sight, spec map[string]any) {
	attempt := fmt.Sprint(saw.attempt)
	switch a.random.IntN(5) {
	case 0:
		if _, accepted := a.write(ctx, saw.plan, "patch", spec); accepted {
			a.accepted.add(saw, "patch")
		}
	case 1:
		if _, accepted := a.write(ctx, saw.plan, saw.request, spec); accepted {
			a.accepted.add(saw, "server-side apply")
		}
	case 2:
		if a.tools.call(saw.request, map[string]any{"name": saw.plan, "phase": string(saw.phase), "attempt": saw.attempt}, nil) == "" {
			a.accepted.add(saw, "tool")
		}
	case 3:
		if _, code := a.run(ctx, "plan", saw.request, saw.plan, "--phase", string(saw.phase), "--attempt", attempt); code == 0 {
			a.accepted.add(saw, "command")
		}
	default: // the command looks at the plan itself, and prints what it approves, retries or reverts
		said, code := a.run(ctx, "plan", saw.request, saw.plan)
		if code != 0 {
			return
		}
		found := printed.FindStringSubmatch(said)
		a.g.Expect(found).To(HaveLen(3), said)
		number, err := strconv.ParseInt(found[2], 10, 32)
		a.g.Expect(err).NotTo(HaveOccurred())
		saw.phase, saw.attempt = v1alpha1.PlanPhase(found[1]), int32(number)
		a.accepted.add(saw, "command that looks")
	}
}

// printed matches the phase and the attempt in the output of berth plan approve, retry and revert.
var printed = regexp.MustCompile(`(Strategize|Execute|Apply) of attempt (\d+)`)

// raise sends the request of a client that does not know spec.approval. The request names no attempt, so the API server has to refuse it.
func (a *approver) raise(ctx context.Context, plan string, target v1alpha1.PlanPhase) {
	how := []string{"patch", "raise"}[a.random.IntN(2)]
	_, accepted := a.write(ctx, plan, how, map[string]any{"targetPhase": target})
	a.g.Expect(accepted).To(BeFalse(), "the target phase of %s was raised to %s", plan, target)
}

// guess approves Apply while the client sees that Execute waits. The API server has to refuse that, unless Apply waits by now, or is already approved.
func (a *approver) guess(ctx context.Context, plan *v1alpha1.Plan) {
	saw := sight{"approve", plan.Name, v1alpha1.PhaseApply, plan.Status.Attempt}
	now, accepted := a.write(ctx, plan.Name, "patch", map[string]any{"approval": map[string]any{"phase": saw.phase, "attempt": saw.attempt}})
	switch s := &now.Status; {
	case !accepted:
	case s.State == v1alpha1.PlanComplete && s.CurrentPhase == v1alpha1.PhaseExecute && s.Attempt == saw.attempt:
		a.accepted.add(saw, "guess")
	default:
		a.accepted.repeat(saw)
	}
}

// write changes the spec of a plan without any check of the plan: by a merge patch or, if how is not "patch", by server-side apply with this field owner. It
// reports whether the API server accepted the change, and returns the plan after it.
func (a *approver) write(ctx context.Context, plan, how string, spec map[string]any) (now *v1alpha1.Plan, accepted bool) {
	text, err := json.Marshal(map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": "Plan", "metadata": map[string]any{"name": plan, "namespace": "default"}, "spec": spec,
	})
	a.g.Expect(err).NotTo(HaveOccurred())
	object := &v1alpha1.Plan{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: plan}}
	if how == "patch" {
		err = a.api.Patch(ctx, object, client.RawPatch(types.MergePatchType, text))
	} else {
		err = a.api.Patch(ctx, object, client.RawPatch(types.ApplyPatchType, text), client.FieldOwner(how), client.ForceOwnership)
	}
	a.g.Expect(err == nil || apierrors.IsInvalid(err)).To(BeTrue(), "%v", err)
	return object, err == nil
}

// run runs berth and returns its output and exit code.
func (a *approver) run(ctx context.Context, args ...string) (said string, code int) {
	var out output
	command := a.app
	command.out, command.err = &out, &out
	code = command.run(ctx, append([]string{"berth"}, args...))
	return out.String(), code
}
