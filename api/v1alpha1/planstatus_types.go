// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// PlanStatus is what is known of a plan.
type PlanStatus struct {
	// The generation of the spec that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// What the plan took over from its action when it began, whatever became of that since.
	// +optional
	// +structType=atomic
	Pinned *PinnedAction `json:"pinned,omitempty"`

	// The phase that the plan is in.
	// +optional
	CurrentPhase PlanPhase `json:"currentPhase,omitempty"`

	// How the plan stands in that phase.
	// +optional
	State PlanState `json:"state,omitempty"`

	// What the plan waits for, in a few words.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Waiting string `json:"waiting,omitempty"`

	// Counts the retries and reversions, from 1. What runs of an older attempt come to is ignored.
	// +optional
	Attempt int32 `json:"attempt,omitempty"`

	// How often the plan was reverted.
	// +optional
	Reversions int32 `json:"reversions,omitempty"`

	// The retryToken that was carried out last.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	ObservedRetryToken string `json:"observedRetryToken,omitempty"`

	// The revert.token that was carried out last.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	ObservedRevertToken string `json:"observedRevertToken,omitempty"`

	// The phases that have succeeded since the plan began or was reverted.
	// +optional
	// +kubebuilder:validation:MaxItems=3
	// +listType=set
	Completed []PlanPhase `json:"completed,omitempty"`

	// When the current phase, in this attempt, began.
	// +optional
	PhaseStartedAt *metav1.MicroTime `json:"phaseStartedAt,omitempty"`

	// When the plan was applied or cancelled.
	// +optional
	FinishedAt *metav1.MicroTime `json:"finishedAt,omitempty"`

	// The runs of the current phase in this attempt. A run is listed before it is created.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +listType=atomic
	Runs []PlanRun `json:"runs,omitempty"`

	// What the runs of each phase came to, the last time that it ended. Later phases are given
	// those of the earlier ones. What they said is in their logs: berth logs strategyrun/NAME.
	// +optional
	// +kubebuilder:validation:MaxItems=96
	// +listType=atomic
	Results []PlanResult `json:"results,omitempty"`

	// How the plan came to where it is; the newest is the last.
	// +optional
	// +kubebuilder:validation:MaxItems=20
	// +listType=atomic
	History []PlanHistoryEntry `json:"history,omitempty"`

	// The older plan with the same idempotencyKey, if there was one: this plan never begins.
	// +optional
	DuplicateOf *PlanReference `json:"duplicateOf,omitempty"`

	// What is true of the plan: Strategized, Executed, Applied, AwaitingApproval, Succeeded, Ready, Reconciling, Stalled, Conflict.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// PinnedAction is an action as a plan found it.
type PinnedAction struct {
	// UID of the Action.
	// +required
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	ActionUID types.UID `json:"actionUID"`

	// Its generation.
	// +optional
	ActionGeneration int64 `json:"actionGeneration,omitempty"`

	// How many runs live at once.
	// +optional
	MaxParallel int32 `json:"maxParallel,omitempty"`

	// How often the plan may be reverted.
	// +optional
	MaxReversions int32 `json:"maxReversions,omitempty"`

	// Arguments that the plan does not give, with their defaults.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=name
	Defaults []RunArgument `json:"defaults,omitempty"`

	// The phases that the action has.
	// +optional
	// +kubebuilder:validation:MaxItems=3
	// +listType=map
	// +listMapKey=name
	Phases []PinnedPhase `json:"phases,omitempty"`
}

// PinnedPhase is a phase as a plan found it.
type PinnedPhase struct {
	// Strategize, Execute or Apply.
	// +required
	Name PlanPhase `json:"name"`

	// What is run.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +listType=atomic
	Strategies []StrategyReference `json:"strategies,omitempty"`

	// How many of them have to succeed.
	// +optional
	Needed int32 `json:"needed,omitempty"`

	// Seconds that it may take; 0: no limit.
	// +optional
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`
}

// StrategyReference is a Strategy as a plan found it.
type StrategyReference struct {
	// Name of the Strategy.
	// +required
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`

	// Its UID.
	// +required
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	UID types.UID `json:"uid"`

	// Its generation.
	// +optional
	Generation int64 `json:"generation,omitempty"`

	// Fingerprint of its program: runs of the plan start while the strategy has this one, and wait while it has another.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Program string `json:"program,omitempty"`
}

// PlanRun is a run of the current phase.
type PlanRun struct {
	// Name of the StrategyRun: the plan, the first 8 characters of its UID, attempt, phase and index.
	// +required
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// The strategy that it runs.
	// +required
	// +kubebuilder:validation:MaxLength=63
	Strategy string `json:"strategy"`

	// Its UID, once that is known.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	UID types.UID `json:"uid,omitempty"`

	// How it ended; unset while it has not.
	// +optional
	Outcome RunOutcome `json:"outcome,omitempty"`

	// How it ended, in words.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Message string `json:"message,omitempty"`

	// What it has left to others; the summary is cut to 256 bytes.
	// +optional
	Result *RunResult `json:"result,omitempty"`
}

// PlanResult is what a run came to.
type PlanResult struct {
	// Name of the StrategyRun.
	// +required
	// +kubebuilder:validation:MaxLength=253
	Run string `json:"run"`

	// The strategy that it ran.
	// +required
	// +kubebuilder:validation:MaxLength=63
	Strategy string `json:"strategy"`

	// The phase.
	// +required
	Phase PlanPhase `json:"phase"`

	// The attempt.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	Attempt int32 `json:"attempt,omitempty"`

	// How it ended.
	// +required
	Outcome RunOutcome `json:"outcome"`

	// How it ended, in words.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Message string `json:"message,omitempty"`

	// What it has left to others; the summary is cut to 256 bytes.
	// +optional
	Result *RunResult `json:"result,omitempty"`
}

// PlanHistoryEntry is a change of a plan's phase or state.
type PlanHistoryEntry struct {
	// When.
	// +required
	Time metav1.MicroTime `json:"time"`

	// The phase since then.
	// +optional
	Phase PlanPhase `json:"phase,omitempty"`

	// The attempt since then.
	// +optional
	Attempt int32 `json:"attempt,omitempty"`

	// The state since then.
	// +required
	State PlanState `json:"state"`

	// Why, in one word.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason,omitempty"`

	// Why, in words.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Message string `json:"message,omitempty"`
}

// PlanReference is another plan.
type PlanReference struct {
	// Name of the Plan.
	// +required
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// Its UID.
	// +required
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	UID types.UID `json:"uid"`
}

// Plan is one use of an Action: it runs the strategies of its phases, one phase after the other, as far as its target phase allows.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=berth,shortName=plan
// +kubebuilder:printcolumn:name="Action",type=string,JSONPath=`.spec.actionRef.name`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.currentPhase`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.state`
// +kubebuilder:printcolumn:name="Waiting",type=string,JSONPath=`.status.waiting`
// +kubebuilder:printcolumn:name="Attempt",type=integer,JSONPath=`.status.attempt`,priority=1
// +kubebuilder:printcolumn:name="Target",type=string,JSONPath=`.spec.targetPhase`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:selectablefield:JSONPath=`.spec.actionRef.name`
// +kubebuilder:selectablefield:JSONPath=`.spec.idempotencyKey`
// +kubebuilder:selectablefield:JSONPath=`.status.state`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 63",message="the name must have at most 63 characters: it is the value of a label of its runs"
type Plan struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// What is wanted.
	// +required
	Spec PlanSpec `json:"spec"`

	// What is; written by Berth alone.
	// +optional
	Status PlanStatus `json:"status,omitempty"`
}

// PlanList is a list of Plans.
// +kubebuilder:object:root=true
type PlanList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Plan `json:"items"`
}
