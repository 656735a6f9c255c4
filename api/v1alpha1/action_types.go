// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ActionState says whether an action may be used.
// +kubebuilder:validation:Enum=Active;Archived
type ActionState string

const (
	// ActionActive lets plans begin.
	ActionActive ActionState = "Active"
	// ActionArchived lets no more plans begin; those that have begun go on.
	ActionArchived ActionState = "Archived"
)

// ArgumentType is what the value of an argument has to be.
// +kubebuilder:validation:Enum=String;Integer;Number;Boolean
type ArgumentType string

// The types of arguments. Values are texts; the type says which texts are taken.
const (
	ArgumentString  ArgumentType = "String"
	ArgumentInteger ArgumentType = "Integer"
	ArgumentNumber  ArgumentType = "Number"
	ArgumentBoolean ArgumentType = "Boolean"
)

// ArgumentPresence says whether a plan has to give an argument.
// +kubebuilder:validation:Enum=Required;Optional
type ArgumentPresence string

const (
	// ArgumentRequired has to be given.
	ArgumentRequired ArgumentPresence = "Required"
	// ArgumentOptional may be left out; its default is taken, if it has one.
	ArgumentOptional ArgumentPresence = "Optional"
)

// ActionSpec is a template of plans. A plan takes it over when it begins; later changes are for later plans.
// +kubebuilder:validation:XValidation:rule="has(self.strategize) || has(self.execute) || has(self.apply)",message="set at least one of strategize, execute and apply"
// +kubebuilder:validation:XValidation:rule="!has(self.arguments) || self.arguments.all(a, self.arguments.exists_one(b, a.name.lowerAscii().replace('-', '_') == b.name.lowerAscii().replace('-', '_')))",message="two arguments would be the same variable: their names differ only in case, - and _"
type ActionSpec struct {
	// What it is for, for people.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Description string `json:"description,omitempty"`

	// Whether plans may begin: Active, or Archived. Plans that have begun go on. Defaults to Active.
	// +optional
	// +kubebuilder:default=Active
	State ActionState `json:"state,omitempty"`

	// What a plan may, or has to, say.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=name
	Arguments []ActionArgument `json:"arguments,omitempty"`

	// How many runs of one plan live at once, over all of its phases. Defaults to 4.
	// +optional
	// +kubebuilder:default=4
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=32
	MaxParallel *int32 `json:"maxParallel,omitempty"`

	// How often one plan may be reverted. Defaults to 3.
	// +optional
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	MaxReversions *int32 `json:"maxReversions,omitempty"`

	// Finds out what is to be done. A phase that is not set is complete at once.
	// +optional
	Strategize *PhaseSpec `json:"strategize,omitempty"`

	// Does it, where it can still be thrown away.
	// +optional
	Execute *PhaseSpec `json:"execute,omitempty"`

	// Lets it take effect.
	// +optional
	Apply *PhaseSpec `json:"apply,omitempty"`
}

// ActionArgument is what one argument may be. The programs of the plan find the argument go-version as the variable ARG_GO_VERSION.
// +kubebuilder:validation:XValidation:rule="!(self.name.lowerAscii() in ['plan', 'phase', 'attempt'])",message="plan, phase and attempt are given to every run: take another name"
// +kubebuilder:validation:XValidation:rule="!has(self.default) || !has(self.presence) || self.presence == 'Optional'",message="an argument with a default is Optional"
// +kubebuilder:validation:XValidation:rule="!has(self.default) || !has(self.values) || self.default in self.values",message="the default must be one of the values"
// +kubebuilder:validation:XValidation:rule="!has(self.default) || !has(self.type) || self.type != 'Integer' || self.default.matches('^[-+]?[0-9]{1,18}$')",message="the default of an Integer must be one"
// +kubebuilder:validation:XValidation:rule="!has(self.default) || !has(self.type) || self.type != 'Boolean' || self.default in ['true', 'false']",message="the default of a Boolean must be true or false"
type ActionArgument struct {
	// Name of the argument.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-zA-Z][-_a-zA-Z0-9]*$`
	Name string `json:"name"`

	// What it is for, for people.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Description string `json:"description,omitempty"`

	// String, Integer, Number or Boolean (true or false). Defaults to String.
	// +optional
	// +kubebuilder:default=String
	Type ArgumentType `json:"type,omitempty"`

	// Whether a plan has to give it: Required or Optional. Defaults to Optional.
	// +optional
	// +kubebuilder:default=Optional
	Presence ArgumentPresence `json:"presence,omitempty"`

	// The value when a plan gives none. Unset: the variable is not set then.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	Default *string `json:"default,omitempty"`

	// The values that are allowed. Unset: all of the type.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=256
	// +listType=set
	Values []string `json:"values,omitempty"`

	// A regular expression (RE2) that the whole value has to match. All patterns of the action together may compile to 2,048 instructions, and a value
	// with a pattern may have 4,194,304 characters divided by that number of instructions. Plans report a pattern that exceeds the limit.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:XValidation:rule="self.contains('{') || ''.matches(self) || !''.matches(self)",message="must be a valid regular expression (RE2)"
	Pattern string `json:"pattern,omitempty"`
}

// PhaseSpec is one phase: strategies that run in parallel, and when that is a success.
// +kubebuilder:validation:XValidation:rule="!has(self.success) || !has(self.success.count) || self.success.count <= self.strategies.size()",message="success.count must not be greater than the number of strategies"
type PhaseSpec struct {
	// The Strategies, in the same namespace, by name. One that is named twice runs twice.
	// +required
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	// +listType=atomic
	Strategies []string `json:"strategies"`

	// When the phase has succeeded. As soon as it has, or cannot any more, what still runs is ended.
	// +optional
	// +kubebuilder:default={}
	Success PhaseSuccess `json:"success,omitzero"`

	// Seconds that the phase may take; then what still runs is ended and the plan is Errored. Unset: only the strategies limit it.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2592000
	TimeoutSeconds *int32 `json:"timeoutSeconds,omitempty"`
}

// SuccessPolicy says how many runs have to succeed.
// +kubebuilder:validation:Enum=All;Any;AtLeast
type SuccessPolicy string

// How many runs of a phase have to succeed.
const (
	SuccessAll     SuccessPolicy = "All"
	SuccessAny     SuccessPolicy = "Any"
	SuccessAtLeast SuccessPolicy = "AtLeast"
)

// PhaseSuccess is when a phase has succeeded.
// +kubebuilder:validation:XValidation:rule="has(self.count) == (has(self.policy) && self.policy == 'AtLeast')",message="set count with the policy AtLeast, and with no other"
type PhaseSuccess struct {
	// All, Any or AtLeast. Defaults to All.
	// +optional
	// +kubebuilder:default=All
	Policy SuccessPolicy `json:"policy,omitempty"`

	// How many, with AtLeast.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=32
	Count *int32 `json:"count,omitempty"`
}

// Action is a template of plans: what they may be told, and which strategies their phases run. It is data; nothing happens until a Plan uses it.
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

	// What it is.
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
