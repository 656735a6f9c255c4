// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// FinalizerCount keeps a StrategyRun until its Strategy has counted it.
	FinalizerCount = "berth.dev/count"
	// LabelStrategy is the label of the StrategyRuns of Plans that mirrors spec.strategyRef.name.
	LabelStrategy = "berth.dev/strategy"
)

// StrategyState says whether runs of a strategy are started.
// +kubebuilder:validation:Enum=Enabled;Disabled
type StrategyState string

const (
	// StrategyEnabled starts runs, unless the breaker is open.
	StrategyEnabled StrategyState = "Enabled"
	// StrategyDisabled lets runs wait.
	StrategyDisabled StrategyState = "Disabled"
)

// StrategySpec is a named way to do a piece of work.
type StrategySpec struct {
	// What it does, for people.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Description string `json:"description,omitempty"`

	// Whether runs are started: Enabled, or Disabled (they wait). Defaults to Enabled.
	// +optional
	// +kubebuilder:default=Enabled
	State StrategyState `json:"state,omitempty"`

	// The program that a run executes. A run takes it over when it starts; later changes are for later runs.
	// The arguments of a run are there as variables, ARG_ and the name in capitals: see StrategyRun.
	// +required
	Process ProcessTemplate `json:"process"`

	// Where runs take place. Defaults to the runtime that the manager was started with.
	// +optional
	Runtime *RuntimeSpec `json:"runtime,omitempty"`

	// Seconds that a run may take; then it is ended and has the outcome TimedOut. Defaults to 3600.
	// +optional
	// +kubebuilder:default=3600
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2592000
	TimeoutSeconds *int32 `json:"timeoutSeconds,omitempty"`

	// When no more runs are tried.
	// +optional
	// +kubebuilder:default={}
	Breaker StrategyBreaker `json:"breaker,omitzero"`

	// Any change of this text closes the breaker and begins a new epoch: runs that started before it do not count for the breaker any more.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	ResetToken string `json:"resetToken,omitempty"`

	// Runs are deleted this many seconds after they have finished and were counted. Unset: only the limits below delete them.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=31536000
	TTLSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished,omitempty"`

	// How many finished runs are kept at most; the oldest go first. Runs of a Plan go with their Plan. Defaults to 100.
	// +optional
	// +kubebuilder:default=100
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	HistoryLimit *int32 `json:"historyLimit,omitempty"`
}

// StrategyBreaker is when no more runs are tried: after failureThreshold failures without a success between them.
type StrategyBreaker struct {
	// Failures (Failed and TimedOut) that open the breaker. Defaults to 3.
	// +optional
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	FailureThreshold *int32 `json:"failureThreshold,omitempty"`

	// Seconds until one run is tried again. 0: open until spec.resetToken changes. Defaults to 0.
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2592000
	CoolDownSeconds *int32 `json:"coolDownSeconds,omitempty"`
}

// StrategyStatus is what is known of a strategy.
type StrategyStatus struct {
	// The generation of the spec that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// The resetToken that was carried out last.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	ObservedResetToken string `json:"observedResetToken,omitempty"`

	// Counts the resets. A run belongs to the epoch in which it started.
	// +optional
	Epoch int64 `json:"epoch,omitempty"`

	// The circuit breaker: open exactly while failures are at least as many as the threshold, or the one try after a cool-down has failed.
	// +optional
	Breaker *StrategyBreakerStatus `json:"breaker,omitempty"`

	// Finished runs of this strategy by outcome, since it was created.
	// +optional
	Totals StrategyTotals `json:"totals,omitzero"`

	// Runs that were counted and still have the finalizer that waits for it: whoever is listed here is not counted again.
	// +optional
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:Type=string
	// +kubebuilder:validation:items:MaxLength=64
	// +listType=set
	Counted []types.UID `json:"counted,omitempty"`

	// What is true of the strategy: Ready, Reconciling, Stalled, CircuitOpen.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// StrategyBreakerStatus is the state of a strategy's breaker.
type StrategyBreakerStatus struct {
	// Closed, Open or HalfOpen.
	// +required
	State BreakerState `json:"state"`

	// Failures since the last success or reset.
	// +optional
	// +kubebuilder:default=0
	Failures int32 `json:"failures,omitempty"`

	// When it opened.
	// +optional
	OpenedAt *metav1.MicroTime `json:"openedAt,omitempty"`

	// The run that is tried while it is HalfOpen.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	Trial types.UID `json:"trial,omitempty"`
}

// StrategyTotals counts runs by outcome.
type StrategyTotals struct {
	// Ended with exit code 0.
	// +optional
	Succeeded int64 `json:"succeeded,omitempty"`
	// Ended otherwise.
	// +optional
	Failed int64 `json:"failed,omitempty"`
	// Took longer than they may.
	// +optional
	TimedOut int64 `json:"timedOut,omitempty"`
	// Were cancelled.
	// +optional
	Cancelled int64 `json:"cancelled,omitempty"`
	// Were not started, as the breaker was open.
	// +optional
	SkippedCircuitOpen int64 `json:"skippedCircuitOpen,omitempty"`
}

// Strategy is a named way to do a piece of work, with a breaker that all of its runs share.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=berth,shortName=strat
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.spec.state`
// +kubebuilder:printcolumn:name="Breaker",type=string,JSONPath=`.status.breaker.state`
// +kubebuilder:printcolumn:name="Failures",type=integer,JSONPath=`.status.breaker.failures`
// +kubebuilder:printcolumn:name="Succeeded",type=integer,JSONPath=`.status.totals.succeeded`
// +kubebuilder:printcolumn:name="Failed",type=integer,JSONPath=`.status.totals.failed`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 63",message="the name must have at most 63 characters: it is the value of a label of its runs"
type Strategy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// What is wanted.
	// +required
	Spec StrategySpec `json:"spec"`

	// What is; written by Berth alone.
	// +optional
	Status StrategyStatus `json:"status,omitempty"`
}

// StrategyList is a list of Strategies.
// +kubebuilder:object:root=true
type StrategyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Strategy `json:"items"`
}
