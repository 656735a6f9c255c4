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
	// PlanComplete means that the current phase has succeeded. The next phase starts when spec.targetPhase or spec.approval permits it.
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
// +kubebuilder:validation:XValidation:rule="self.targetPhase == oldSelf.targetPhase || self.targetPhase == 'Strategize' || oldSelf.targetPhase == 'Apply' || (has(self.revert) && (!has(oldSelf.revert) || self.revert.token != oldSelf.revert.token))",message="targetPhase may be raised only together with revert.token; to approve the phase that waits, set spec.approval to this phase and to status.attempt"
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

	// targetPhase is the last phase that starts without approval, in every attempt: Strategize, Execute or Apply. When that phase has succeeded, the plan
	// waits for spec.approval. After the creation, only a change of revert.token may raise this field. Defaults to Strategize.
	// +optional
	// +kubebuilder:default=Strategize
	TargetPhase PlanPhase `json:"targetPhase,omitempty"`

	// approval approves the phase that waits for approval. The API server accepts a new value only while the plan waits for approval of exactly this phase
	// in exactly this attempt, and no retry, revert or cancellation is requested. An approval has no effect on other attempts.
	// +optional
	// +structType=atomic
	Approval *PlanApproval `json:"approval,omitempty"`

	// state is the desired state of the plan: Active or Cancelled. Cancelled stops the plan and cannot be undone. Defaults to Active.
	// +optional
	// +kubebuilder:default=Active
	State PlanRequest `json:"state,omitempty"`

	// retryToken requests a retry. Any new value runs the current phase again, unless the phase has succeeded. Berth first stops runs of the
	// phase that are still active. The API server accepts a change only if retryFrom names the current phase and attempt. At most 256 characters.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	RetryToken string `json:"retryToken,omitempty"`

	// retryFrom names the phase and the attempt that the user of retryToken saw: status.currentPhase and status.attempt.
	// +optional
	// +structType=atomic
	RetryFrom *PlanPosition `json:"retryFrom,omitempty"`

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

// PlanApproval approves a phase of one attempt of a plan.
// +kubebuilder:validation:XValidation:rule="self.phase != 'Strategize'",message="Strategize needs no approval: name the phase that waits, Execute or Apply"
// +kubebuilder:validation:XValidation:rule="!has(self.toPhase) || self.toPhase == self.phase || (self.phase == 'Execute' && self.toPhase == 'Apply')",message="toPhase must not be before phase"
type PlanApproval struct {
	// phase is the phase that waits for approval: Execute or Apply.
	// +required
	Phase PlanPhase `json:"phase"`

	// attempt is the attempt that waits for approval, as in status.attempt. 1 to 2147483647.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483647
	Attempt int32 `json:"attempt"`

	// toPhase is the last phase that this approval covers in the same attempt. Unset: only phase.
	// +optional
	ToPhase PlanPhase `json:"toPhase,omitempty"`
}

// PlanPosition is a phase of an attempt of a plan.
type PlanPosition struct {
	// phase is the phase: Strategize, Execute or Apply.
	// +required
	Phase PlanPhase `json:"phase"`

	// attempt is the attempt. 1 to 2147483647.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483647
	Attempt int32 `json:"attempt"`
}

// PlanRevert requests that a plan restarts at the phase Strategize. A plan can be reverted from Execute, from Apply, and from a Strategize that has
// failed.
type PlanRevert struct {
	// toPhase is the phase at which the plan restarts; only Strategize is supported. Lower spec.targetPhase in the same change; otherwise the plan
	// continues up to spec.targetPhase without approval. Defaults to Strategize.
	// +optional
	// +kubebuilder:default=Strategize
	// +kubebuilder:validation:XValidation:rule="self == 'Strategize'",message="a plan can be reverted to Strategize only"
	ToPhase PlanPhase `json:"toPhase,omitempty"`

	// token identifies the request. Any new value is a new request. The API server accepts a change only if from names the current phase and
	// attempt. 1 to 256 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Token string `json:"token"`

	// from names the phase and the attempt that the user of the request saw: status.currentPhase and status.attempt.
	// +optional
	// +structType=atomic
	From *PlanPosition `json:"from,omitempty"`

	// reason explains the revert to users. Berth records it in status.history. At most 256 characters.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Reason string `json:"reason,omitempty"`
}
