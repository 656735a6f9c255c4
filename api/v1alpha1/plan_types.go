// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

const (
	// FinalizerPlan keeps a StrategyRun until its Plan has recorded the outcome of the run. A run that status.runs lists without an outcome, and that
	// does not exist, was therefore never created.
	FinalizerPlan = "berth.dev/plan"
	// LabelPlan is the label of a StrategyRun that names its Plan.
	LabelPlan = "berth.dev/plan"
)

// PlanPhase is a phase of a plan.
// +kubebuilder:validation:Enum=Strategize;Execute;Apply
type PlanPhase string

// The phases of a plan, in order.
const (
	PhaseStrategize PlanPhase = "Strategize"
	PhaseExecute    PlanPhase = "Execute"
	PhaseApply      PlanPhase = "Apply"
)

// PlanRequest is the desired state of a plan.
// +kubebuilder:validation:Enum=Active;Cancelled
type PlanRequest string

const (
	// PlanActive requests that the plan continues to its target phase.
	PlanActive PlanRequest = "Active"
	// PlanCancelRequested requests that the plan stops. This cannot be undone; create another plan instead.
	PlanCancelRequested PlanRequest = "Cancelled"
)

// PlanState is the state of a plan in its current phase.
// +kubebuilder:validation:Enum=Queued;Processing;Complete;Applied;Errored;Constrained;Cancelled
type PlanState string

const (
	// PlanQueued means that the plan has not started.
	PlanQueued PlanState = "Queued"
	// PlanProcessing means that runs of the current phase are in progress or being stopped.
	PlanProcessing PlanState = "Processing"
	// PlanComplete means that the current phase has succeeded. The next phase starts when spec.targetPhase permits it.
	PlanComplete PlanState = "Complete"
	// PlanApplied means that the last phase has succeeded.
	PlanApplied PlanState = "Applied"
	// PlanErrored means that the current phase has failed or exceeded its timeout. A user can retry, revert or cancel the plan.
	PlanErrored PlanState = "Errored"
	// PlanConstrained means that a limit prevents the plan from continuing: the breaker of a strategy, or maxReversions.
	PlanConstrained PlanState = "Constrained"
	// PlanCancelled means that the plan was cancelled, and none of its runs is running.
	PlanCancelled PlanState = "Cancelled"
)

// PlanSpec is the desired state of a Plan.
// +kubebuilder:validation:XValidation:rule="self.actionRef == oldSelf.actionRef",message="actionRef is immutable; create another plan"
// +kubebuilder:validation:XValidation:rule="has(self.arguments) == has(oldSelf.arguments) && (!has(self.arguments) || self.arguments == oldSelf.arguments)",message="arguments are immutable; create another plan"
// +kubebuilder:validation:XValidation:rule="oldSelf.state != 'Cancelled' || self.state == 'Cancelled'",message="a cancelled plan cannot become Active again; create another plan"
// +kubebuilder:validation:XValidation:rule=`(has(self.idempotencyKey) ? self.idempotencyKey : "") == (has(oldSelf.idempotencyKey) ? oldSelf.idempotencyKey : "")`,message="idempotencyKey is immutable; create another plan"
// +kubebuilder:validation:XValidation:rule="has(self.instanceRef) == has(oldSelf.instanceRef) && (!has(self.instanceRef) || self.instanceRef == oldSelf.instanceRef)",message="instanceRef is immutable; create another plan"
type PlanSpec struct {
	// actionRef names the Action of the plan, in the same namespace. Immutable.
	// +required
	ActionRef LocalReference `json:"actionRef"`

	// arguments are the values of the arguments that the action declares. At most 32. Immutable.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=name
	Arguments []RunArgument `json:"arguments,omitempty"`

	// targetPhase is the last phase that may start: Strategize, Execute or Apply. When that phase has succeeded, the plan waits until this field names a
	// later phase. Defaults to Strategize.
	// +optional
	// +kubebuilder:default=Strategize
	TargetPhase PlanPhase `json:"targetPhase,omitempty"`

	// state is the desired state of the plan: Active or Cancelled. Cancelled stops the plan and cannot be undone. Defaults to Active.
	// +optional
	// +kubebuilder:default=Active
	State PlanRequest `json:"state,omitempty"`

	// retryToken requests a retry. Any change of its value runs the current phase again, unless the phase has succeeded. Berth first stops runs of the
	// phase that are still active. At most 256 characters.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	RetryToken string `json:"retryToken,omitempty"`

	// revert requests that the plan restarts at an earlier phase.
	// +optional
	Revert *PlanRevert `json:"revert,omitempty"`

	// instanceRef names the Instance that owns this plan: deleting the Instance deletes the plan. Immutable.
	// +optional
	InstanceRef *LocalReference `json:"instanceRef,omitempty"`

	// ttlSecondsAfterFinished is the time, in seconds, after which Berth deletes a plan that was applied or cancelled, together with its runs. 0 to
	// 31536000 (one year). Unset: Berth never deletes the plan.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=31536000
	TTLSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished,omitempty"`

	// idempotencyKey prevents duplicate plans. Of all plans in a namespace with the same key, only one starts: the plan that has already started or, if
	// there is none, the oldest. At most 256 characters. Immutable. Unset: Berth does not check for duplicates.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	IdempotencyKey string `json:"idempotencyKey,omitempty"`
}

// PlanRevert requests that a plan restarts at the phase Strategize. A plan can be reverted from Execute, from Apply, and from a Strategize that has
// failed.
type PlanRevert struct {
	// toPhase is the phase at which the plan restarts; only Strategize is supported. Lower spec.targetPhase in the same change; otherwise the plan
	// continues from there without approval. Defaults to Strategize.
	// +optional
	// +kubebuilder:default=Strategize
	// +kubebuilder:validation:XValidation:rule="self == 'Strategize'",message="a plan can be reverted to Strategize only"
	ToPhase PlanPhase `json:"toPhase,omitempty"`

	// token identifies the request. Any change of its value is a new request. 1 to 256 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Token string `json:"token"`

	// reason explains the revert to users. Berth records it in status.history. At most 256 characters.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Reason string `json:"reason,omitempty"`
}
