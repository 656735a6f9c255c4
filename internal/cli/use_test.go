// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"
	"sync"
	"testing"

	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/api/v1alpha1"
)

func TestUse_CreatesPlanOrReportsError(t *testing.T) {
	for name, test := range map[string]struct {
		args string
		code int
		says string
		// created is the number of new plans.
		created int
	}{
		"an action":                   {args: "check-module --arg module=/src", says: "plan/check-module-", created: 1},
		"up to a phase":               {args: "check-module --arg module=/src --to execute --name mine", says: "plan/mine created", created: 1},
		"values with = and ,":         {args: "check-module --arg module=/a=b,c", says: "created", created: 1},
		"as a name":                   {args: "check-module --arg module=/src --name mine -o name", says: "plan.berth.dev/mine", created: 1},
		"a format and a wait":         {args: "check-module --arg module=/src -o name --wait", code: 2, says: "omit -o or --wait"},
		"no such action":              {args: "nope", code: 3, says: "action nope does not exist in namespace \"default\": to list all actions, run kubectl get actions -A"},
		"other namespace":             {args: "check-module -n other", code: 3, says: "does not exist in namespace \"other\""},
		"no arguments":                {args: "", code: 2, says: "berth use ACTION"},
		"a missing argument":          {args: "check-module", code: 1, says: "Argument module is required: set it with --arg; the action takes module (required), depth"},
		"an argument too many":        {args: "check-module --arg module=/a --arg color=red", code: 1, says: "Argument color is not declared by the action"},
		"an argument of another type": {args: "check-module --arg module=/a --arg depth=deep", code: 1, says: "Argument depth must be an integer"},
		"an argument twice":           {args: "check-module --arg module=/a --arg module=/b", code: 2, says: "argument module is set twice"},
		"not an argument":             {args: "check-module --arg module", code: 2, says: "\"module\" is not NAME=VALUE"},
		"no such phase":               {args: "check-module --to deploy", code: 2, says: "use strategize, execute or apply"},
		"an existing name":            {args: "check-module --arg module=/a --name check", code: 1, says: "plan/check already exists (Strategize Complete waiting for approval of Execute): choose another --name"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			f := newPlanFixture(checkModule(), newPlan())
			g.Expect(f.run(t.Context(), append([]string{"use"}, strings.Fields(test.args)...)...)).To(Equal(test.code), f.err.String())
			g.Expect(f.out.String() + f.err.String()).To(ContainSubstring(test.says))
			list := &v1alpha1.PlanList{}
			g.Expect(f.api.List(t.Context(), list)).To(Succeed())
			g.Expect(list.Items).To(HaveLen(1 + test.created))
		})
	}
}

func TestUse_RefusesArchivedAction(t *testing.T) {
	g := NewWithT(t)
	archived := checkModule()
	archived.Spec.State = v1alpha1.ActionArchived
	f := newPlanFixture(archived)
	g.Expect(f.run(t.Context(), "use", "check-module", "--arg", "module=/a")).To(Equal(1))
	g.Expect(f.err.String()).To(ContainSubstring("is archived: set its spec.state to Active"))
}

func TestUse_StoresArgumentsInPlan(t *testing.T) {
	g := NewWithT(t)
	f := newPlanFixture(checkModule())
	g.Expect(f.run(t.Context(), "use", "check-module", "--arg", "module=/src; rm -rf /", "--to", "Apply", "--name", "check", "--key", "pr-1")).To(BeZero())
	g.Expect(readCheck(g, f).Spec).To(Equal(v1alpha1.PlanSpec{
		ActionRef: v1alpha1.LocalReference{Name: "check-module"}, TargetPhase: v1alpha1.PhaseApply, State: v1alpha1.PlanActive, IdempotencyKey: "pr-1",
		Arguments: []v1alpha1.RunArgument{{Name: "module", Value: "/src; rm -rf /"}},
	}))
}

// Concurrent calls with the same key create one plan, and every call prints its name.
func TestUse_SameKeyCreatesOnePlan(t *testing.T) {
	g := NewWithT(t)
	f := newPlanFixture(checkModule())
	var all sync.WaitGroup
	codes := make([]int, 20)
	for i := range codes {
		all.Go(func() { codes[i] = f.run(t.Context(), "use", "check-module", "--arg", "module=/src", "--key", "pr-1") })
	}
	all.Wait()
	g.Expect(codes).To(HaveEach(0), f.err.String())
	list := &v1alpha1.PlanList{}
	g.Expect(f.api.List(t.Context(), list)).To(Succeed())
	g.Expect(list.Items).To(HaveLen(1))
	name := "plan/" + list.Items[0].Name
	g.Expect(strings.Count(f.out.String(), name+" created")).To(Equal(1))
	g.Expect(strings.Count(f.out.String(), name+" already exists: Queued")).To(Equal(19))

	for words, says := range map[string]string{
		"use check-module --key pr-1 --arg module=/other":             "already uses the key \"pr-1\", with a different value of argument module: choose another --key",
		"use check-module --key pr-1 --arg module=/src --arg depth=1": "a different value of argument depth",
		"use other --key pr-1":                                        "has the key \"pr-1\" and uses action check-module",
	} {
		g.Expect(f.run(t.Context(), strings.Fields(words)...)).To(Equal(1))
		g.Expect(f.err.String()).To(ContainSubstring(says))
	}
	g.Expect(f.run(t.Context(), "use", "check-module", "--arg", "module=/src", "--key", "pr-2")).To(BeZero())
	g.Expect(f.api.List(t.Context(), list)).To(Succeed())
	g.Expect(list.Items).To(HaveLen(2), "another key is another plan")
}

func TestKeyedName_IsBoundedAndUnique(t *testing.T) {
	g := NewWithT(t)
	long := strings.Repeat("a", 51) + "." + strings.Repeat("b", 200)
	g.Expect(keyedName(long, "k")).To(And(HaveLen(62), HavePrefix(strings.Repeat("a", 51)+"-")))
	g.Expect(keyedName("a", "k")).NotTo(Equal(keyedName("a", "l")))
	g.Expect(keyedName("ab", "c")).NotTo(Equal(keyedName("a", "bc")))
}

// Of several plans with the same key, the one that has started counts, regardless of age.
func TestUse_KeyFindsStartedPlanFirst(t *testing.T) {
	g := NewWithT(t)
	keyed := func(p *v1alpha1.Plan) { p.Spec.IdempotencyKey = "pr-1" }
	older := newPlan(keyed, inState("", v1alpha1.PlanQueued), func(p *v1alpha1.Plan) { p.Name, p.Status.Pinned = "a-older", nil })
	f := newPlanFixture(checkModule(), older, newPlan(keyed))
	g.Expect(f.run(t.Context(), "use", "check-module", "--key", "pr-1")).To(BeZero(), f.err.String())
	g.Expect(f.out.String()).To(HavePrefix("plan/check already exists"))
}
