// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// PlanStatus is the observed state of a Plan.
type PlanStatus struct {
	// observedGeneration is the generation of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// pinned is the copy of the action that the plan made when it started. Later changes of the action do not affect the plan.
	// +optional
	// +structType=atomic
	Pinned *PinnedAction `json:"pinned,omitempty"`

	// currentPhase is the current phase of the plan.
	// +optional
	CurrentPhase PlanPhase `json:"currentPhase,omitempty"`

	// state is the state of the plan in its current phase.
	// +optional
	State PlanState `json:"state,omitempty"`

	// waiting is a short text that states what the plan waits for, such as "for approval of Apply".
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Waiting string `json:"waiting,omitempty"`

	// attempt is the number of the current attempt: 1, plus one for every retry and revert. Berth ignores the results of runs of older attempts.
	// +optional
	Attempt int32 `json:"attempt,omitempty"`

	// reversions is the number of times that the plan was reverted.
	// +optional
	Reversions int32 `json:"reversions,omitempty"`

	// observedRetryToken is the last retryToken that Berth acted on.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	ObservedRetryToken string `json:"observedRetryToken,omitempty"`

	// observedRevertToken is the last revert.token that Berth acted on.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	ObservedRevertToken string `json:"observedRevertToken,omitempty"`

	// completed are the phases that have succeeded since the plan started or was last reverted.
	// +optional
	// +kubebuilder:validation:MaxItems=3
	// +listType=set
	Completed []PlanPhase `json:"completed,omitempty"`

	// phaseStartTime is when the current attempt of the current phase started.
	// +optional
	PhaseStartTime *metav1.MicroTime `json:"phaseStartTime,omitempty"`

	// finishTime is when the plan was applied or cancelled.
	// +optional
	FinishTime *metav1.MicroTime `json:"finishTime,omitempty"`

	// runs lists the runs of the current phase in this attempt. At most 32. Berth lists a run here before it creates the run.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +listType=atomic
	Runs []PlanRun `json:"runs,omitempty"`

	// results lists the outcomes and results of the runs of each phase, from the last time that the phase ended. At most 96. Runs of later phases get
	// the results of earlier phases. berth logs strategyrun/NAME prints the output of a run.
	// +optional
	// +kubebuilder:validation:MaxItems=96
	// +listType=atomic
	Results []PlanResult `json:"results,omitempty"`

	// history lists the last 20 changes of phase or state, newest last.
	// +optional
	// +kubebuilder:validation:MaxItems=20
	// +listType=atomic
	History []PlanHistoryEntry `json:"history,omitempty"`

	// duplicateOf is the plan with the same idempotencyKey that has started instead of this plan. If it is set, this plan never starts.
	// +optional
	DuplicateOf *PlanReference `json:"duplicateOf,omitempty"`

	// conditions describe the current state of the plan. Ready, Reconciling and Stalled are always set. Strategized, Executed, Applied,
	// AwaitingApproval, Succeeded and Conflict are set only while they have a message or an unusual status; an absent Succeeded is Unknown, and the
	// others are False.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// PinnedAction is the copy of an action that a plan makes when it starts.
type PinnedAction struct {
	// actionUID is the UID of the Action.
	// +required
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	ActionUID types.UID `json:"actionUID"`

	// actionGeneration is the generation of the Action.
	// +optional
	ActionGeneration int64 `json:"actionGeneration,omitempty"`

	// maxParallel is the maximum number of simultaneous runs.
	// +optional
	MaxParallel int32 `json:"maxParallel,omitempty"`

	// maxReversions is the maximum number of reverts.
	// +optional
	MaxReversions int32 `json:"maxReversions,omitempty"`

	// defaults are the arguments that the plan does not set, with their default values.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=name
	Defaults []RunArgument `json:"defaults,omitempty"`

	// phases lists the phases that the action defines.
	// +optional
	// +kubebuilder:validation:MaxItems=3
	// +listType=map
	// +listMapKey=name
	Phases []PinnedPhase `json:"phases,omitempty"`
}

// PinnedPhase is the copy of a phase that a plan makes when it starts.
type PinnedPhase struct {
	// name is Strategize, Execute or Apply.
	// +required
	Name PlanPhase `json:"name"`

	// strategies are the strategies that the phase runs.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +listType=atomic
	Strategies []StrategyReference `json:"strategies,omitempty"`

	// needed is the number of runs of the phase that must succeed.
	// +optional
	Needed int32 `json:"needed,omitempty"`

	// timeoutSeconds is the maximum duration of the phase, in seconds. 0: no limit.
	// +optional
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`
}

// StrategyReference identifies a Strategy and its program at the time when a plan started.
type StrategyReference struct {
	// name is the name of the Strategy.
	// +required
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`

	// uid is the UID of the Strategy.
	// +required
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	UID types.UID `json:"uid"`

	// generation is the generation of the Strategy.
	// +optional
	Generation int64 `json:"generation,omitempty"`

	// program is a hash of the program of the Strategy. A run of the plan starts only while the Strategy has this program.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Program string `json:"program,omitempty"`
}

// PlanRun is a run of the current phase.
type PlanRun struct {
	// name is the name of the StrategyRun. It consists of the name of the plan, the first 8 characters of the UID of the plan, the attempt, the phase,
	// and the index of the run in the phase.
	// +required
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// strategy is the name of the strategy that the run executes.
	// +required
	// +kubebuilder:validation:MaxLength=63
	Strategy string `json:"strategy"`

	// uid is the UID of the StrategyRun. Unset until Berth knows it.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	UID types.UID `json:"uid,omitempty"`

	// outcome is the outcome of the run. Unset until the run has ended.
	// +optional
	Outcome RunOutcome `json:"outcome,omitempty"`

	// message contains details of the outcome.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Message string `json:"message,omitempty"`

	// result describes the result that the run left, with a summary of at most 256 bytes. Unset if there is none.
	// +optional
	Result *RunResult `json:"result,omitempty"`
}

// PlanResult is the outcome and the result of a run.
type PlanResult struct {
	// run is the name of the StrategyRun.
	// +required
	// +kubebuilder:validation:MaxLength=253
	Run string `json:"run"`

	// strategy is the name of the strategy that the run executed.
	// +required
	// +kubebuilder:validation:MaxLength=63
	Strategy string `json:"strategy"`

	// phase is the phase of the run.
	// +required
	Phase PlanPhase `json:"phase"`

	// attempt is the attempt of the run.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	Attempt int32 `json:"attempt,omitempty"`

	// outcome is the outcome of the run.
	// +required
	Outcome RunOutcome `json:"outcome"`

	// message contains details of the outcome.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Message string `json:"message,omitempty"`

	// result describes the result that the run left, with a summary of at most 256 bytes. Unset if there is none.
	// +optional
	Result *RunResult `json:"result,omitempty"`
}

// PlanHistoryEntry is a change of a plan's phase or state.
type PlanHistoryEntry struct {
	// time is when the change happened.
	// +required
	Time metav1.MicroTime `json:"time"`

	// phase is the phase after the change.
	// +optional
	Phase PlanPhase `json:"phase,omitempty"`

	// attempt is the attempt after the change.
	// +optional
	Attempt int32 `json:"attempt,omitempty"`

	// state is the state after the change.
	// +required
	State PlanState `json:"state"`

	// reason is the cause of the change, in one word.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason,omitempty"`

	// message contains details of the cause.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Message string `json:"message,omitempty"`
}

// PlanReference identifies another plan.
type PlanReference struct {
	// name is the name of the Plan.
	// +required
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// uid is the UID of the Plan.
	// +required
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	UID types.UID `json:"uid"`
}

// Plan is one execution of an Action: it runs the strategies of its phases, one phase after the other, up to its target phase.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=berth,shortName=plan
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="Status of the condition Ready"
// +kubebuilder:printcolumn:name="Action",type=string,JSONPath=`.spec.actionRef.name`,description="Action of the plan"
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.currentPhase`,description="Current phase"
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.state`,description="State of the current phase"
// +kubebuilder:printcolumn:name="Waiting",type=string,JSONPath=`.status.waiting`,description="What the plan waits for"
// +kubebuilder:printcolumn:name="Attempt",type=integer,JSONPath=`.status.attempt`,description="Number of the current attempt",priority=1
// +kubebuilder:printcolumn:name="Target",type=string,JSONPath=`.spec.targetPhase`,description="Last phase that may start",priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`,description="Time since the object was created"
// +kubebuilder:selectablefield:JSONPath=`.spec.actionRef.name`
// +kubebuilder:selectablefield:JSONPath=`.spec.idempotencyKey`
// +kubebuilder:selectablefield:JSONPath=`.spec.instanceRef.name`
// +kubebuilder:selectablefield:JSONPath=`.status.state`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 63",message="the name must have at most 63 characters, because it is the value of a label of its runs"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.approval) || (has(self.status) && has(self.status.attempt) && self.spec.approval.attempt <= self.status.attempt)",message="spec.approval names an attempt that has not started; to create a plan that continues without approval, set spec.targetPhase"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.approval) || (has(oldSelf.spec.approval) && self.spec.approval == oldSelf.spec.approval) || !has(self.status) || (has(self.status.state) && self.status.state == 'Complete' && self.status.attempt == self.spec.approval.attempt && self.spec.approval.phase == (self.status.currentPhase == 'Strategize' ? 'Execute' : 'Apply'))",message="spec.approval must name the phase and the attempt that wait for approval now: see status.waiting and status.attempt"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.approval) || (has(oldSelf.spec.approval) && self.spec.approval == oldSelf.spec.approval) || !has(self.status) || (self.spec.state == 'Active' && (!has(self.spec.retryToken) || self.spec.retryToken.size() == 0 || (has(self.status.observedRetryToken) && self.spec.retryToken == self.status.observedRetryToken)) && (!has(self.spec.revert) || (has(self.status.observedRevertToken) && self.spec.revert.token == self.status.observedRevertToken)))",message="spec.approval cannot be set while a retry, a revert or a cancellation is requested"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.retryToken) || self.spec.retryToken.size() == 0 || (has(oldSelf.spec.retryToken) && self.spec.retryToken == oldSelf.spec.retryToken) || (has(self.spec.retryFrom) && has(self.status) && has(self.status.attempt) && has(self.status.currentPhase) && self.spec.retryFrom.attempt == self.status.attempt && self.spec.retryFrom.phase == self.status.currentPhase)",message="a new spec.retryToken needs spec.retryFrom with the current phase and attempt: see status.currentPhase and status.attempt"
// +kubebuilder:validation:XValidation:rule="!has(self.spec.revert) || (has(oldSelf.spec.revert) && self.spec.revert.token == oldSelf.spec.revert.token) || (has(self.spec.revert.from) && has(self.status) && has(self.status.attempt) && has(self.status.currentPhase) && self.spec.revert.from.attempt == self.status.attempt && self.spec.revert.from.phase == self.status.currentPhase)",message="a new spec.revert.token needs spec.revert.from with the current phase and attempt: see status.currentPhase and status.attempt"
type Plan struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the metadata that all Kubernetes objects have.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired state.
	// +required
	Spec PlanSpec `json:"spec"`

	// status is the observed state. Only Berth writes it.
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
