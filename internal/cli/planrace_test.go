// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
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

const (
	racePlans = 40
	// raceRounds is how often each client looks at all plans, raceBatch how many plans it looks at before it acts on what it saw.
	raceRounds = 2
	raceBatch  = 8
)

// sight is a phase of an attempt of a plan that waited for approval when a client looked at the plan.
type sight struct {
	plan    string
	phase   v1alpha1.PlanPhase
	attempt int32
}

// approvals are the sights that clients approved.
type approvals struct {
	mu sync.Mutex
	by map[sight]string
}

func (a *approvals) add(s sight, by string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.by[s] = by
}

// approver is a client that approves, through one of several interfaces, phases that it saw some time before.
type approver struct {
	g      Gomega
	api    client.Client
	app    app
	tools  *toolClient
	out    *output
	random *rand.Rand
	given  *approvals
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
	runManagerWithoutPrograms(t, config, api)
	createRacePlans(t, api)

	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	given := &approvals{by: map[sight]string{}}
	var clients sync.WaitGroup
	for i := range uint64(2) {
		f := newFixture()
		f.api = api
		a := &approver{g: g, api: api, app: *f.app, tools: newToolClient(t, f, mcpFlags{allowApprove: true}), out: f.out, random: rand.New(rand.NewPCG(seed, i)), given: given}
		clients.Go(func() { a.work(t.Context()) })
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
	started := map[string]int{}
	for _, plan := range list.Items {
		for _, entry := range plan.Status.History {
			if entry.Reason != v1alpha1.ReasonApproved {
				continue
			}
			by := given.by[sight{plan.Name, entry.Phase, entry.Attempt}]
			g.Expect(by).NotTo(BeEmpty(), "no client saw and approved %s of attempt %d of %s: %v", entry.Phase, entry.Attempt, plan.Name, plan.Status.History)
			started[by]++
		}
	}
	t.Logf("approved phases by interface: %v", started)
	g.Expect(started).To(HaveLen(4), "approvals through every interface had an effect")
}

// runManagerWithoutPrograms runs a manager whose programs exit with code 0 soon after their start.
func runManagerWithoutPrograms(t *testing.T, config *rest.Config, api client.WithWatch) {
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
	ended.Go(func() {
		defer runs.Stop()
		for event := range runs.ResultChan() {
			if run, ok := event.Object.(*v1alpha1.StrategyRun); ok && run.Status.Process != nil && run.Status.Outcome == "" {
				programs.Exit(run.UID, facts.Exit{Known: true})
			}
		}
	})
}

// createRacePlans creates plans that wait for approval of Execute, and then of Apply.
func createRacePlans(t *testing.T, api client.Client) {
	t.Helper()
	g := NewWithT(t)
	strategy := &v1alpha1.Strategy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "work"}}
	strategy.Spec.Process.Command = []string{"work"}
	g.Expect(api.Create(t.Context(), strategy)).To(Succeed())
	phase := &v1alpha1.PhaseSpec{Strategies: []v1alpha1.PhaseStrategy{{Name: "work"}}}
	action := &v1alpha1.Action{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "act"}}
	action.Spec.Execute, action.Spec.Apply, action.Spec.MaxReversions = phase, phase, ptr.To[int32](10)
	g.Expect(api.Create(t.Context(), action)).To(Succeed())
	for i := range racePlans {
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
func (a *approver) work(ctx context.Context) {
	for range raceRounds {
		order := a.random.Perm(racePlans)
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

// act approves the phase that waited when the client looked at the plan, or changes the plan in another way.
func (a *approver) act(ctx context.Context, plan *v1alpha1.Plan) {
	saw := sight{plan.Name, plans.Awaited(&plan.Spec, &plan.Status), plan.Status.Attempt}
	switch choice := a.random.IntN(10); {
	case choice == 0:
		a.patch(ctx, plan, map[string]any{"revert": map[string]any{"token": fmt.Sprint(a.random.Uint64())}})
	case choice == 1:
		a.patch(ctx, plan, map[string]any{"retryToken": fmt.Sprint(a.random.Uint64())})
	case saw.phase == "":
		return
	case choice < 4:
		a.patch(ctx, plan, map[string]any{"targetPhase": saw.phase}) // names no attempt, so the API server refuses it
		if a.patch(ctx, plan, map[string]any{"approval": map[string]any{"phase": saw.phase, "attempt": saw.attempt}}) {
			a.given.add(saw, "patch")
		}
	case choice < 6:
		arguments := map[string]any{"name": saw.plan, "phase": string(saw.phase), "attempt": saw.attempt}
		if a.tools.call("approve", arguments, nil) == "" {
			a.given.add(saw, "tool")
		}
	case choice < 8:
		if _, code := a.run(ctx, "plan", "approve", saw.plan, "--phase", string(saw.phase), "--attempt", fmt.Sprint(saw.attempt)); code == 0 {
			a.given.add(saw, "command")
		}
	default: // the command looks at the plan itself, and prints what it approves
		said, code := a.run(ctx, "plan", "approve", saw.plan)
		if _, what, found := strings.Cut(said, "approved: "); found && code == 0 {
			_, err := fmt.Sscanf(what, "%s of attempt %d", &saw.phase, &saw.attempt)
			a.g.Expect(err).NotTo(HaveOccurred(), said)
			a.given.add(saw, "command that looks")
		}
	}
}

// patch changes the spec of a plan without any check of the plan, and reports whether the API server accepted it.
func (a *approver) patch(ctx context.Context, plan *v1alpha1.Plan, spec map[string]any) bool {
	text, err := json.Marshal(map[string]any{"spec": spec})
	a.g.Expect(err).NotTo(HaveOccurred())
	err = a.api.Patch(ctx, plan.DeepCopy(), client.RawPatch(types.MergePatchType, text))
	if _, raises := spec["targetPhase"]; raises {
		a.g.Expect(apierrors.IsInvalid(err)).To(BeTrue(), "a target phase was raised: %v", err)
	}
	a.g.Expect(err == nil || apierrors.IsInvalid(err)).To(BeTrue(), "%v", err)
	return err == nil
}

// run runs berth and returns its output and exit code.
func (a *approver) run(ctx context.Context, args ...string) (said string, code int) {
	var out output
	command := a.app
	command.out, command.err = &out, &out
	code = command.run(ctx, append([]string{"berth"}, args...))
	return out.String(), code
}
