// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ActionState states whether new plans may start from an action.
// +kubebuilder:validation:Enum=Active;Archived
type ActionState string

const (
	// ActionActive permits new plans to start.
	ActionActive ActionState = "Active"
	// ActionArchived prevents new plans from starting; plans that have started continue.
	ActionArchived ActionState = "Archived"
)

// ArgumentType is the type of the value of an argument.
// +kubebuilder:validation:Enum=String;Integer;Number;Boolean
type ArgumentType string

// The types of arguments. All values are strings; the type states which strings are valid.
const (
	ArgumentString  ArgumentType = "String"
	ArgumentInteger ArgumentType = "Integer"
	ArgumentNumber  ArgumentType = "Number"
	ArgumentBoolean ArgumentType = "Boolean"
)

// ArgumentPresence states whether a plan must set an argument.
// +kubebuilder:validation:Enum=Required;Optional
type ArgumentPresence string

const (
	// ArgumentRequired means that a plan must set the argument.
	ArgumentRequired ArgumentPresence = "Required"
	// ArgumentOptional means that a plan may omit the argument; its default then applies, if it has one.
	ArgumentOptional ArgumentPresence = "Optional"
)

// ActionSpec is a template for plans. A plan copies it when it starts; changes apply only to later plans. At least one of strategize, execute and
// apply must be set.
// +kubebuilder:validation:XValidation:rule="has(self.strategize) || has(self.execute) || has(self.apply)",message="set at least one of strategize, execute and apply"
// +kubebuilder:validation:XValidation:rule="!has(self.arguments) || self.arguments.all(a, self.arguments.exists_one(b, a.name.lowerAscii().replace('-', '_') == b.name.lowerAscii().replace('-', '_')))",message="two arguments would set the same variable, because their names differ only in case, - and _"
type ActionSpec struct {
	// description is a description for users, at most 1024 characters.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Description string `json:"description,omitempty"`

	// state is Active or Archived: whether new plans may start. Plans that have started continue. Defaults to Active.
	// +optional
	// +kubebuilder:default=Active
	State ActionState `json:"state,omitempty"`

	// arguments are the arguments that a plan may or must set. At most 32. Their names must not differ only in case, - and _.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=name
	Arguments []ActionArgument `json:"arguments,omitempty"`

	// maxParallel is the maximum number of simultaneous runs of one plan, over all of its phases. 1 to 32. Defaults to 4.
	// +optional
	// +kubebuilder:default=4
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=32
	MaxParallel *int32 `json:"maxParallel,omitempty"`

	// maxReversions is the maximum number of reverts of one plan. 0 to 100. Defaults to 3.
	// +optional
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	MaxReversions *int32 `json:"maxReversions,omitempty"`

	// strategize is the phase that determines what to do. A phase that is not set completes at once.
	// +optional
	Strategize *PhaseSpec `json:"strategize,omitempty"`

	// execute is the phase that does the work where it can still be discarded.
	// +optional
	Execute *PhaseSpec `json:"execute,omitempty"`

	// apply is the phase that makes the work take effect.
	// +optional
	Apply *PhaseSpec `json:"apply,omitempty"`
}

// ActionArgument defines one argument. The programs of the plan get the argument go-version as the variable ARG_GO_VERSION.
// +kubebuilder:validation:XValidation:rule="!(self.name.lowerAscii() in ['plan', 'phase', 'attempt'])",message="the argument names plan, phase and attempt are reserved; use another name"
// +kubebuilder:validation:XValidation:rule="!has(self.default) || !has(self.presence) || self.presence == 'Optional'",message="an argument with a default must be Optional"
// +kubebuilder:validation:XValidation:rule="!has(self.default) || !has(self.values) || self.default in self.values",message="the default must be one of the values"
// +kubebuilder:validation:XValidation:rule="!has(self.default) || !has(self.type) || self.type != 'Integer' || self.default.matches('^[-+]?[0-9]{1,18}$')",message="the default of an Integer must be an integer of at most 18 digits"
// +kubebuilder:validation:XValidation:rule="!has(self.default) || !has(self.type) || self.type != 'Boolean' || self.default in ['true', 'false']",message="the default of a Boolean must be true or false"
type ActionArgument struct {
	// name is the name of the argument, at most 63 letters, digits, - and _. plan, phase and attempt are reserved.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-zA-Z][-_a-zA-Z0-9]*$`
	Name string `json:"name"`

	// description is a description for users, at most 256 characters.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Description string `json:"description,omitempty"`

	// type is String, Integer, Number or Boolean (true or false). Defaults to String.
	// +optional
	// +kubebuilder:default=String
	Type ArgumentType `json:"type,omitempty"`

	// presence is Required or Optional: whether a plan must set the argument. An argument with a default must be Optional. Defaults to Optional.
	// +optional
	// +kubebuilder:default=Optional
	Presence ArgumentPresence `json:"presence,omitempty"`

	// default is the value if a plan does not set the argument, at most 4096 characters. Unset: the variable is then not set.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	Default *string `json:"default,omitempty"`

	// values are the allowed values, at most 64 of at most 256 characters. Unset: all values of the type.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=256
	// +listType=set
	Values []string `json:"values,omitempty"`

	// pattern is a regular expression (RE2) that must match the whole value, at most 256 characters. All patterns of the action together may compile to
	// at most 2,048 instructions, and a value with a pattern may have at most 4,194,304 characters divided by that number of instructions. Plans report
	// a pattern that exceeds the limit.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="self.contains('{') || ''.matches(self) || !''.matches(self)",message="must be a valid regular expression (RE2)"
	Pattern string `json:"pattern,omitempty"`
}

// PhaseSpec is one phase: the strategies, which run in parallel, and when the phase has succeeded.
// +kubebuilder:validation:XValidation:rule="!has(self.success) || !has(self.success.count) || self.success.count <= self.strategies.size()",message="success.count must not be greater than the number of strategies"
type PhaseSpec struct {
	// strategies are the names of Strategies in the same namespace, 1 to 32 names of at most 63 characters. A Strategy that is listed twice runs twice.
	// +required
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	// +listType=atomic
	Strategies []string `json:"strategies"`

	// success states when the phase has succeeded. As soon as it has succeeded, or can no longer succeed, Berth stops the remaining runs.
	// +optional
	// +kubebuilder:default={}
	Success PhaseSuccess `json:"success,omitzero"`

	// timeoutSeconds is the maximum duration of the phase, in seconds. After that Berth stops the remaining runs, and the plan is Errored. 1 to 2592000
	// (30 days). Unset: only the timeouts of the strategies apply.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2592000
	TimeoutSeconds *int32 `json:"timeoutSeconds,omitempty"`
}

// SuccessPolicy states how many runs of a phase must succeed.
// +kubebuilder:validation:Enum=All;Any;AtLeast
type SuccessPolicy string

// The success policies of a phase.
const (
	SuccessAll     SuccessPolicy = "All"
	SuccessAny     SuccessPolicy = "Any"
	SuccessAtLeast SuccessPolicy = "AtLeast"
)

// PhaseSuccess states when a phase has succeeded.
// +kubebuilder:validation:XValidation:rule="has(self.count) == (has(self.policy) && self.policy == 'AtLeast')",message="count is required if policy is AtLeast, and not allowed otherwise"
type PhaseSuccess struct {
	// policy is All, Any or AtLeast: how many runs must succeed. Defaults to All.
	// +optional
	// +kubebuilder:default=All
	Policy SuccessPolicy `json:"policy,omitempty"`

	// count is the number of runs that must succeed with the policy AtLeast. 1 to 32, but not more than the number of strategies. Required with AtLeast,
	// and not allowed otherwise.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=32
	Count *int32 `json:"count,omitempty"`
}

// Action is a template for plans: the arguments that they accept, and the strategies that their phases run. An Action itself runs nothing.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:categories=berth,shortName=act
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.spec.state`
// +kubebuilder:printcolumn:name="Strategize",type=string,JSONPath=`.spec.strategize.strategies`
// +kubebuilder:printcolumn:name="Execute",type=string,JSONPath=`.spec.execute.strategies`
// +kubebuilder:printcolumn:name="Apply",type=string,JSONPath=`.spec.apply.strategies`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:selectablefield:JSONPath=`.spec.state`
type Action struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the template.
	// +required
	Spec ActionSpec `json:"spec"`
}

// ActionList is a list of Actions.
// +kubebuilder:object:root=true
type ActionList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Action `json:"items"`
}
