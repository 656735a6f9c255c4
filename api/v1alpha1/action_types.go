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

// Presence states whether something must exist: an argument of a plan, or the Secret or ConfigMap to which a variable refers.
// +kubebuilder:validation:Enum=Required;Optional
type Presence string

const (
	// PresenceRequired means that a plan must set the argument, or that the key must exist before a process starts.
	PresenceRequired Presence = "Required"
	// PresenceOptional means that a plan may omit the argument (its default then applies, if it has one), or that the variable is unset if the key does not
	// exist.
	PresenceOptional Presence = "Optional"
)

// ActionSpec is a template for plans. A plan copies the template when the plan starts, so later changes apply only to plans that start afterwards. At
// least one of strategize, execute and apply must be set.
// +kubebuilder:validation:XValidation:rule="has(self.strategize) || has(self.execute) || has(self.apply)",message="set at least one of strategize, execute and apply"
// +kubebuilder:validation:XValidation:rule="!has(self.arguments) || self.arguments.all(a, self.arguments.exists_one(b, a.name.lowerAscii().replace('-', '_') == b.name.lowerAscii().replace('-', '_')))",message="two arguments would set the same variable, because their names differ only in case, - and _"
type ActionSpec struct {
	// description explains the action to users. At most 1024 characters.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Description string `json:"description,omitempty"`

	// state determines whether new plans may start from this action: Active or Archived. Archiving an action does not affect plans that have started.
	// Defaults to Active.
	// +optional
	// +kubebuilder:default=Active
	State ActionState `json:"state,omitempty"`

	// arguments are the arguments that plans accept. At most 32. Two names must not differ only in case, - and _.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=name
	Arguments []ActionArgument `json:"arguments,omitempty"`

	// maxParallel is the maximum number of runs of one plan that are active at the same time. 1 to 32. Defaults to 4.
	// +optional
	// +kubebuilder:default=4
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=32
	MaxParallel *int32 `json:"maxParallel,omitempty"`

	// maxReversions is the maximum number of times that one plan can be reverted. 0 to 100. Defaults to 3.
	// +optional
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	MaxReversions *int32 `json:"maxReversions,omitempty"`

	// strategize is the phase that determines what to do. Unset: the phase completes immediately.
	// +optional
	Strategize *PhaseSpec `json:"strategize,omitempty"`

	// execute is the phase that does the work in such a way that the result can still be discarded. Unset: the phase completes immediately.
	// +optional
	Execute *PhaseSpec `json:"execute,omitempty"`

	// apply is the phase that makes the result of the work take effect. Unset: the phase completes immediately.
	// +optional
	Apply *PhaseSpec `json:"apply,omitempty"`
}

// ActionArgument defines one argument. Every run of the plan gets the argument as an environment variable: go-version becomes ARG_GO_VERSION.
// +kubebuilder:validation:XValidation:rule="!(self.name.lowerAscii() in ['plan', 'phase', 'attempt'])",message="the argument names plan, phase and attempt are reserved; use another name"
// +kubebuilder:validation:XValidation:rule="!has(self.default) || !has(self.presence) || self.presence == 'Optional'",message="an argument with a default must be Optional"
// +kubebuilder:validation:XValidation:rule="!has(self.default) || !has(self.values) || self.default in self.values",message="the default must be one of the values"
// +kubebuilder:validation:XValidation:rule="!has(self.default) || !has(self.type) || self.type != 'Integer' || self.default.matches('^[-+]?[0-9]{1,18}$')",message="the default of an Integer must be an integer of at most 18 digits"
// +kubebuilder:validation:XValidation:rule="!has(self.default) || !has(self.type) || self.type != 'Number' || self.default.matches('^[-+]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][-+]?[0-9]{1,3})?$')",message="the default of a Number must be a decimal number, such as -1.5 or 2e3"
// +kubebuilder:validation:XValidation:rule="!has(self.default) || !has(self.type) || self.type != 'Boolean' || self.default in ['true', 'false']",message="the default of a Boolean must be true or false"
type ActionArgument struct {
	// name is the name of the argument: a letter, followed by letters, digits, - and _. At most 63 characters. The names plan, phase and attempt are
	// reserved.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-zA-Z][-_a-zA-Z0-9]*$`
	Name string `json:"name"`

	// description explains the argument to users. At most 256 characters.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Description string `json:"description,omitempty"`

	// type is the type of the value: String, Integer, Number or Boolean (true or false). Defaults to String.
	// +optional
	// +kubebuilder:default=String
	Type ArgumentType `json:"type,omitempty"`

	// presence states whether a plan must set the argument: Required or Optional. An argument with a default must be Optional. Defaults to Optional.
	// +optional
	// +kubebuilder:default=Optional
	Presence Presence `json:"presence,omitempty"`

	// default is the value of the argument in plans that do not set it. At most 4096 characters. It must be valid for the type: for an Integer, an integer
	// of at most 18 digits; for a Number, a decimal number such as -1.5 or 2e3, without NaN, Inf and hexadecimal numbers; for a Boolean, true or false. If
	// values are set, it must be one of them. Unset: the runs of such a plan do not get the variable.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	Default *string `json:"default,omitempty"`

	// values are the allowed values. At most 64 values of at most 256 characters. Unset: all values of the type are allowed.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=256
	// +listType=set
	Values []string `json:"values,omitempty"`

	// pattern is a regular expression (RE2) that must match the whole value. At most 256 characters. All patterns of an action together may compile to
	// at most 2,048 instructions. If they compile to n instructions, a value that is matched against a pattern must have fewer than 4,194,304 / n
	// characters. A plan whose action exceeds the limit of 2,048 does not start, and its condition Stalled names the pattern. Unset: the value is not
	// matched.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="self.contains('{') || ''.matches(self) || !''.matches(self)",message="must be a valid regular expression (RE2)"
	Pattern string `json:"pattern,omitempty"`
}

// PhaseSpec defines one phase: the strategies that the phase runs in parallel, and how many of these runs must succeed.
// +kubebuilder:validation:XValidation:rule="!has(self.success) || !has(self.success.count) || self.success.count <= self.strategies.size()",message="success.count must not be greater than the number of strategies"
type PhaseSpec struct {
	// strategies are the Strategies that the phase runs. 1 to 32. A Strategy that is listed twice runs twice.
	// +required
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +listType=atomic
	Strategies []PhaseStrategy `json:"strategies"`

	// success states how many runs must succeed for the phase to succeed. As soon as the phase has succeeded, or can no longer succeed, Berth stops the
	// remaining runs. Defaults to all runs.
	// +optional
	// +kubebuilder:default={}
	Success PhaseSuccess `json:"success,omitzero"`

	// timeoutSeconds is the maximum duration of the phase, in seconds. If the phase takes longer, Berth stops the remaining runs, and the plan becomes
	// Errored. 1 to 2592000 (30 days). Unset: only the timeouts of the strategies apply.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2592000
	TimeoutSeconds *int32 `json:"timeoutSeconds,omitempty"`
}

// PhaseStrategy is a Strategy that a phase runs.
type PhaseStrategy struct {
	// name is the name of a Strategy in the namespace of the Action. At most 63 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	Name string `json:"name"`
}

// SuccessPolicy states how many runs of a phase must succeed.
// +kubebuilder:validation:Enum=All;Any;AtLeast
type SuccessPolicy string

// The success policies of a phase: All requires that every run succeeds, Any at least one run, and AtLeast the number of runs in count.
const (
	SuccessAll     SuccessPolicy = "All"
	SuccessAny     SuccessPolicy = "Any"
	SuccessAtLeast SuccessPolicy = "AtLeast"
)

// PhaseSuccess states how many runs must succeed for a phase to succeed.
// +kubebuilder:validation:XValidation:rule="has(self.count) == (has(self.policy) && self.policy == 'AtLeast')",message="count is required if policy is AtLeast, and not allowed otherwise"
type PhaseSuccess struct {
	// policy states how many runs must succeed: All, Any (at least one) or AtLeast (at least count). Defaults to All.
	// +optional
	// +kubebuilder:default=All
	Policy SuccessPolicy `json:"policy,omitempty"`

	// count is the number of runs that must succeed if policy is AtLeast. 1 to 32, but not more than the number of strategies. Required if policy is
	// AtLeast, and not allowed otherwise.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=32
	Count *int32 `json:"count,omitempty"`
}

// Action is a template for plans: the arguments that plans accept, and the strategies that the phases of a plan run. An Action by itself runs
// nothing.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:categories=berth,shortName=act
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.spec.state`,description="Whether new plans may start"
// +kubebuilder:printcolumn:name="Strategize",type=string,JSONPath=`.spec.strategize.strategies`,description="Strategies of the phase Strategize"
// +kubebuilder:printcolumn:name="Execute",type=string,JSONPath=`.spec.execute.strategies`,description="Strategies of the phase Execute"
// +kubebuilder:printcolumn:name="Apply",type=string,JSONPath=`.spec.apply.strategies`,description="Strategies of the phase Apply"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`,description="Time since the object was created"
// +kubebuilder:selectablefield:JSONPath=`.spec.state`
type Action struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the metadata that all Kubernetes objects have.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the template for plans.
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
