// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

const (
	// FinalizerPlan keeps a StrategyRun until its Plan has put its outcome on record: a run that is not there was never created.
	FinalizerPlan = "berth.dev/plan"
	// LabelPlan is the label of a StrategyRun that names its Plan.
	LabelPlan = "berth.dev/plan"
)

// PlanPhase is a phase of a plan.
// +kubebuilder:validation:Enum=Strategize;Execute;Apply
type PlanPhase string

// The phases of a plan, in this order.
const (
	PhaseStrategize PlanPhase = "Strategize"
	PhaseExecute    PlanPhase = "Execute"
	PhaseApply      PlanPhase = "Apply"
)

// PlanRequest is what is wanted of a plan.
// +kubebuilder:validation:Enum=Active;Cancelled
type PlanRequest string

const (
	// PlanActive wants the plan to go on to its target phase.
	PlanActive PlanRequest = "Active"
	// PlanCancelRequested wants it ended. There is no way back: create another plan.
	PlanCancelRequested PlanRequest = "Cancelled"
)

// PlanState is how a plan stands in its current phase.
// +kubebuilder:validation:Enum=Queued;Processing;Complete;Applied;Errored;Constrained;Cancelled
type PlanState string

const (
	// PlanQueued means that it has not begun.
	PlanQueued PlanState = "Queued"
	// PlanProcessing means that runs of the current phase take place, or are being ended.
	PlanProcessing PlanState = "Processing"
	// PlanComplete means that the current phase has succeeded; the next begins when spec.targetPhase allows it.
	PlanComplete PlanState = "Complete"
	// PlanApplied means that the last phase has succeeded.
	PlanApplied PlanState = "Applied"
	// PlanErrored means that the current phase has failed; retry, revert or cancel it.
	PlanErrored PlanState = "Errored"
	// PlanConstrained means that a limit keeps it from going on: the breaker of a strategy, or maxReversions.
	PlanConstrained PlanState = "Constrained"
	// PlanCancelled means that it was cancelled, and nothing of it runs.
	PlanCancelled PlanState = "Cancelled"
)

// PlanSpec is one use of an action.
// +kubebuilder:validation:XValidation:rule="self.actionRef == oldSelf.actionRef",message="actionRef is immutable: create another plan"
// +kubebuilder:validation:XValidation:rule="has(self.arguments) == has(oldSelf.arguments) && (!has(self.arguments) || self.arguments == oldSelf.arguments)",message="arguments are immutable: create another plan"
// +kubebuilder:validation:XValidation:rule="oldSelf.state != 'Cancelled' || self.state == 'Cancelled'",message="a plan that was cancelled stays so: create another plan"
// +kubebuilder:validation:XValidation:rule=`(has(self.idempotencyKey) ? self.idempotencyKey : "") == (has(oldSelf.idempotencyKey) ? oldSelf.idempotencyKey : "")`,message="idempotencyKey is immutable: create another plan"
// +kubebuilder:validation:XValidation:rule="has(self.instanceRef) == has(oldSelf.instanceRef) && (!has(self.instanceRef) || self.instanceRef == oldSelf.instanceRef)",message="instanceRef is immutable: create another plan"
type PlanSpec struct {
	// The Action, in the same namespace, that is used. Immutable.
	// +required
	ActionRef LocalReference `json:"actionRef"`

	// What the action is told. Immutable.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=name
	Arguments []RunArgument `json:"arguments,omitempty"`

	// The last phase that may begin: a plan waits after it until this is raised. Defaults to Strategize.
	// +optional
	// +kubebuilder:default=Strategize
	TargetPhase PlanPhase `json:"targetPhase,omitempty"`

	// What is wanted: Active, or Cancelled, from which there is no way back. Defaults to Active.
	// +optional
	// +kubebuilder:default=Active
	State PlanRequest `json:"state,omitempty"`

	// A new text runs the current phase once more, unless it has succeeded. What still runs of it is ended before.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	RetryToken string `json:"retryToken,omitempty"`

	// Asks to begin again at an earlier phase.
	// +optional
	Revert *PlanRevert `json:"revert,omitempty"`

	// The Instance that this plan belongs to: when that is deleted, so is this. Immutable.
	// +optional
	InstanceRef *LocalReference `json:"instanceRef,omitempty"`

	// The plan is deleted, with its runs, this many seconds after it was applied or cancelled. Unset: never.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=31536000
	TTLSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished,omitempty"`

	// Of all plans of a namespace with the same key only one begins: the oldest. Immutable.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	IdempotencyKey string `json:"idempotencyKey,omitempty"`
}

// PlanRevert asks to begin again at an earlier phase: from Execute, Apply, or a Strategize that has failed.
type PlanRevert struct {
	// The phase to begin again at. Defaults to Strategize. Lower spec.targetPhase with it, or the plan goes on from there by itself.
	// +optional
	// +kubebuilder:default=Strategize
	// +kubebuilder:validation:XValidation:rule="self == 'Strategize'",message="a plan can be reverted to Strategize only"
	ToPhase PlanPhase `json:"toPhase,omitempty"`

	// A new text is a new request.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Token string `json:"token"`

	// Why, for people; it is kept in the history.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Reason string `json:"reason,omitempty"`
}
