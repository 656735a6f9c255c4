// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package api

import (
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

var (
	actionOnly   = []string{kindAction}
	planOnly     = []string{kindPlan}
	strategyOnly = []string{kindStrategy}
	runOnly      = []string{kindStrategyRun}
)

// init adds the test cases for fields that Action, Plan, Strategy, StrategyRun and Instance do not share with all kinds.
func init() {
	refusals = append(refusals, []refusal{
		{"no phase", actionOnly, `{spec: {strategize: null}}`, "set at least one of strategize, execute and apply"},
		{"a phase without strategies", actionOnly, `{spec: {execute: {timeoutSeconds: 5}}}`, "spec.execute.strategies: Required value"},
		{"an argument twice", actionOnly, `{spec: {arguments: [{name: a}, {name: a}]}}`, "Duplicate value"},
		{"two arguments of one variable", actionOnly, `{spec: {arguments: [{name: go-version}, {name: GO_version}]}}`, "two arguments would set the same variable"},
		{"an argument with a reserved name", actionOnly, `{spec: {arguments: [{name: Attempt}]}}`, "the argument names plan, phase and attempt are reserved"},
		{"a required argument with a default", actionOnly, `{spec: {arguments: [{name: a, presence: Required, default: x}]}}`, "an argument with a default must be Optional"},
		{"a default that is not allowed", actionOnly, `{spec: {arguments: [{name: a, values: [b, c], default: d}]}}`, "the default must be one of the values"},
		{"a default that is not an integer", actionOnly, `{spec: {arguments: [{name: a, type: Integer, default: "1.5"}]}}`, "the default of an Integer must be an integer"},
		{"a default that is not a number", actionOnly, `{spec: {arguments: [{name: a, type: Number, default: "1.5s"}]}}`, "the default of a Number must be a decimal number"},
		{"an empty default of a number", actionOnly, `{spec: {arguments: [{name: a, type: Number, default: ""}]}}`, "the default of a Number must be a decimal number"},
		{"a default with a decimal point only", actionOnly, `{spec: {arguments: [{name: a, type: Number, default: "."}]}}`, "the default of a Number must be a decimal number"},
		{"a default with an empty exponent", actionOnly, `{spec: {arguments: [{name: a, type: Number, default: "1e"}]}}`, "the default of a Number must be a decimal number"},
		{"a default that is infinite", actionOnly, `{spec: {arguments: [{name: a, type: Number, default: Inf}]}}`, "the default of a Number must be a decimal number"},
		{"a hexadecimal default", actionOnly, `{spec: {arguments: [{name: a, type: Number, default: "0x1p-2"}]}}`, "the default of a Number must be a decimal number"},
		{"a default of a number in two lines", actionOnly, `{spec: {arguments: [{name: a, type: Number, default: "1\n2"}]}}`, "the default of a Number must be a decimal number"},
		{"a number as default that is not allowed", actionOnly, `{spec: {arguments: [{name: a, type: Number, values: ["1", "2"], default: "1.0"}]}}`, "the default must be one of the values"},
		{"a default that is not a boolean", actionOnly, `{spec: {arguments: [{name: a, type: Boolean, default: "yes"}]}}`, "the default of a Boolean must be true or false"},
		{"a pattern that closes its group", actionOnly, `{spec: {arguments: [{name: a, pattern: ")|.*(?:"}]}}`, "must be a valid regular expression (RE2)"},
		{"an invalid pattern of a terminal", instanceOnly, `{spec: {terminal: {awaitingInput: {patterns: ["> $", "("]}}}}`, "must be a valid regular expression (RE2)"},
		{"more successes than strategies", actionOnly, `{spec: {apply: {strategies: [{name: a}], success: {policy: AtLeast, count: 2}}}}`, "success.count must not be greater than the number of strategies"},
		{"AtLeast without a count", actionOnly, `{spec: {apply: {strategies: [{name: a}], success: {policy: AtLeast}}}}`, "count is required if policy is AtLeast"},
		{"a count with another policy", actionOnly, `{spec: {apply: {strategies: [{name: a}], success: {policy: Any, count: 1}}}}`, "count is required if policy is AtLeast"},
		{"no action", planOnly, `{spec: {actionRef: null}}`, "spec.actionRef: Required value"},
		{"a revert to Execute", planOnly, `{spec: {revert: {toPhase: Execute, token: a}}}`, "a plan can be reverted to Strategize only"},
		{"a revert without a token", planOnly, `{spec: {revert: {reason: a}}}`, "spec.revert.token: Required value"},
		{"an approval of Strategize", planOnly, `{spec: {approval: {phase: Strategize, attempt: 1}}}`, "Strategize needs no approval"},
		{"an approval of fewer phases than one", planOnly, `{spec: {approval: {phase: Apply, attempt: 1, toPhase: Execute}}}`, "toPhase must not be before phase"},
		{"an approval without an attempt", planOnly, `{spec: {approval: {phase: Apply}}}`, "spec.approval.attempt: Required value"},
		{"an approval without a phase", planOnly, `{spec: {approval: {attempt: 1}}}`, "spec.approval.phase: Required value"},
		{"an approval of attempt 0", planOnly, `{spec: {approval: {phase: Apply, attempt: 0}}}`, "should be greater than or equal to 1"},
		{"an approval before the start", planOnly, `{spec: {approval: {phase: Execute, attempt: 1}}}`, "spec.approval names an attempt that has not started"},
		{"an argument twice", planOnly, `{spec: {arguments: [{name: a}, {name: a}]}}`, "Duplicate value"},
		{"a long name", planOnly, `{metadata: {name: ` + strings.Repeat("a", 64) + `}}`, "the name must have at most 63 characters"},
		{"a long name", strategyOnly, `{metadata: {name: ` + strings.Repeat("a", 64) + `}}`, "the name must have at most 63 characters"},
		{"no strategy", runOnly, `{spec: {strategyRef: null}}`, "spec.strategyRef: Required value"},
		{"a strategy with a long name", runOnly, `{spec: {strategyRef: {name: ` + strings.Repeat("a", 64) + `}}}`, "the name of a strategy must have at most 63 characters"},
		{"an argument twice", runOnly, `{spec: {arguments: [{name: a}, {name: a}]}}`, "Duplicate value"},
		{"an input twice", runOnly, `{spec: {inputs: [{run: a, strategy: b, phase: Execute, outcome: Failed}, {run: a, strategy: c, phase: Execute, outcome: Failed}]}}`, "Duplicate value"},
		{"an input of an unknown phase", runOnly, `{spec: {inputs: [{run: a, strategy: b, phase: Deploy, outcome: Failed}]}}`, "Unsupported value"},
	}...)
	transitions = append(transitions, []transition{
		{"another action", planOnly, `{}`, `{spec: {actionRef: {name: b}}}`, "actionRef is immutable"},
		{"arguments set later", planOnly, `{}`, `{spec: {arguments: [{name: a}]}}`, "arguments are immutable"},
		{"another argument", planOnly, `{spec: {arguments: [{name: a}]}}`, `{spec: {arguments: [{name: b}]}}`, "arguments are immutable"},
		{"cancelled, then active", planOnly, `{spec: {state: Cancelled}}`, `{spec: {state: Active}}`, "a cancelled plan cannot become Active again"},
		{"cancelled, then unset", planOnly, `{spec: {state: Cancelled}}`, `{spec: {state: null}}`, "a cancelled plan cannot become Active again"},
		{"a key set later", planOnly, `{}`, `{spec: {idempotencyKey: a}}`, "idempotencyKey is immutable"},
		{"another key", planOnly, `{spec: {idempotencyKey: a}}`, `{spec: {idempotencyKey: b}}`, "idempotencyKey is immutable"},
		{"an instance set later", planOnly, `{}`, `{spec: {instanceRef: {name: a}}}`, "instanceRef is immutable"},
		{"retried before it has started", planOnly, `{}`, `{spec: {retryToken: a, retryFrom: {phase: Strategize, attempt: 1}}}`, "a new spec.retryToken needs spec.retryFrom"},
		{"reverted before it has started", planOnly, `{}`, `{spec: {revert: {token: a, from: {phase: Strategize, attempt: 1}}}}`, "a new spec.revert.token needs spec.revert.from"},
		{"a higher target", planOnly, `{}`, `{spec: {targetPhase: Execute}}`, "targetPhase may be raised only together with revert.token"},
		{"a higher target that was lowered before", planOnly, `{spec: {targetPhase: Execute}}`, `{spec: {targetPhase: Apply}}`, "targetPhase may be raised only together with revert.token"},
		{"a higher target with an old revert", planOnly, `{spec: {revert: {token: a}}}`, `{spec: {targetPhase: Apply}}`, "targetPhase may be raised only together with revert.token"},
		{"approval withdrawn", planOnly, `{spec: {targetPhase: Apply}}`, `{spec: {targetPhase: Strategize}}`, ""},
		{"another description and phase", actionOnly, `{}`, `{spec: {description: a, apply: {strategies: [{name: a}, {name: a}]}}}`, ""},
		{"numbers as defaults", actionOnly, `{}`, `{spec: {arguments: [{name: a, type: Number, default: "-1.5"}, {name: b, type: Number, default: "2e3"},
			{name: c, type: Number, default: ".5E-10"}, {name: d, type: Number, default: "+7."}, {name: e, type: Number, values: ["1", "2"], default: "2"}]}}`, ""},
		{"a default that is no number, of type String", actionOnly, `{}`, `{spec: {arguments: [{name: a, default: NaN}]}}`, ""},
		{"a pattern with a count, which the manager checks", actionOnly, `{}`, `{spec: {arguments: [{name: a, pattern: "(.?){1000}"}]}}`, ""},
		{"patterns of a terminal", instanceOnly, `{}`, `{spec: {terminal: {awaitingInput: {patterns: ["^my-agent> $", ".{1,900}"]}}}}`, ""},
		{"another program", strategyOnly, `{}`, `{spec: {process: {command: [cat]}, resetToken: a}}`, ""},
		{"another strategy", runOnly, `{}`, `{spec: {strategyRef: {name: b}}}`, "strategyRef is immutable"},
		{"arguments set later", runOnly, `{}`, `{spec: {arguments: [{name: a}]}}`, "arguments are immutable"},
		{"inputs set later", runOnly, `{}`, `{spec: {inputs: [{run: a, strategy: b, phase: Execute, outcome: Failed}]}}`, "inputs are immutable"},
		{"another input", runOnly, `{spec: {inputs: [{run: a, strategy: b, phase: Execute, outcome: Failed}]}}`, `{spec: {inputs: [{run: a, strategy: b, phase: Execute, outcome: Succeeded}]}}`, "inputs are immutable"},
		{"a program set later", runOnly, `{}`, `{spec: {program: a}}`, "program is immutable"},
		{"another program", runOnly, `{spec: {program: a}}`, `{spec: {program: b}}`, "program is immutable"},
		{"cancelled", runOnly, `{}`, `{spec: {state: Cancelled}}`, ""},
		{"cancelled, then active", runOnly, `{spec: {state: Cancelled}}`, `{spec: {state: Active}}`, "a cancelled run cannot become Active again"},
	}...)
	for _, resource := range []string{"actions", "plans", "strategies", "strategyruns"} {
		accesses = append(accesses, access{"list", resource, []string{"view", "edit", "admin", "manager"}})
	}
	for _, resource := range []string{"plans", "strategyruns"} { // these expire
		accesses = append(accesses, access{"delete", resource, []string{"edit", "admin", "manager"}}, access{"patch", resource, []string{"edit", "admin", "manager"}})
	}
	for _, resource := range []string{"actions", "strategies"} {
		accesses = append(accesses, access{"delete", resource, []string{"edit", "admin"}}, access{"patch", resource, []string{"edit", "admin"}})
	}
	accesses = append(accesses,
		access{"create", "plans", []string{"edit", "admin"}},
		access{"create", "strategyruns", []string{"edit", "admin", "manager"}},
		access{"get", "plans/status", []string{"view", "edit", "admin"}},
		access{"patch", "plans/status", []string{"manager"}},
		access{"patch", "strategies/status", []string{"manager"}},
		access{"get", "strategyruns/log", []string{"view", "edit", "admin"}},
	)
}

func TestDefinition_OtherKinds(t *testing.T) {
	for kind, want := range map[string]struct {
		short, columns, fields string
		status                 bool
	}{
		kindAction: {"act", "State Strategize Execute Apply Age", ".spec.state", false},
		kindPlan: {
			"plan",
			"Ready Action Phase State Waiting Attempt Target Age", ".spec.actionRef.name .spec.idempotencyKey .spec.instanceRef.name .status.state", true,
		},
		kindStrategy: {
			"strat",
			"Ready State Breaker Failures Succeeded Failed Age", ".spec.runtime.type", true,
		},
		kindStrategyRun: {"srun", "Ready Strategy Outcome Reason Started Finished Result Node Age", ".spec.strategyRef.name .status.outcome", true},
	} {
		t.Run(kind, func(t *testing.T) {
			g := NewWithT(t)
			crd := definition(t, kind)
			g.Expect(crd.Spec.Scope).To(Equal(apiextensionsv1.NamespaceScoped))
			g.Expect(crd.Spec.Names.Categories).To(ConsistOf("berth"))
			g.Expect(crd.Spec.Names.ShortNames).To(ConsistOf(want.short))
			version := crd.Spec.Versions[0]
			g.Expect(version.Subresources != nil && version.Subresources.Status != nil).To(Equal(want.status))
			var columns, fields []string
			for _, column := range version.AdditionalPrinterColumns {
				columns = append(columns, column.Name)
			}
			for _, field := range version.SelectableFields {
				fields = append(fields, field.JSONPath)
			}
			g.Expect(strings.Join(columns, " ")).To(Equal(want.columns))
			g.Expect(strings.Join(fields, " ")).To(Equal(want.fields))
		})
	}
}

func TestDefaults_OtherKinds(t *testing.T) {
	for kind, want := range map[string]string{
		kindAction: `
state: Active
maxParallel: 4
maxReversions: 3
strategize: {strategies: [{name: lint}], success: {policy: All}}
arguments: [{name: a, type: String, presence: Optional}]
`,
		kindPlan:        `{actionRef: {name: release}, targetPhase: Strategize, state: Active, revert: {token: a, toPhase: Strategize}}`,
		kindStrategyRun: `{strategyRef: {name: lint}, state: Active}`,
		kindStrategy: `
state: Enabled
timeoutSeconds: 3600
historyLimit: 100
breaker: {failureThreshold: 3, coolDownSeconds: 0}
process: {command: [sleep, infinity], stop: {gracePeriodSeconds: 10}}
`,
	} {
		t.Run(kind, func(t *testing.T) {
			fragment := map[string]string{
				kindAction: `{spec: {arguments: [{name: a}]}}`,
				kindPlan:   `{spec: {revert: {token: a}}}`,
			}[kind]
			o := object(t, kind, "defaulted", fragment)
			NewWithT(t).Expect(dryRun(t.Context(), o)).To(Succeed())
			expectEqualJSON(t, parse(t, want), o.Object["spec"])
		})
	}
}
