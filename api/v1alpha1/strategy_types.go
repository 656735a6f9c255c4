// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// FinalizerCount keeps a StrategyRun until its Strategy has counted the run.
	FinalizerCount = "berth.dev/count"
	// LabelStrategy is the label on the StrategyRuns of Plans that mirrors spec.strategyRef.name.
	LabelStrategy = "berth.dev/strategy"
)

// StrategyState states whether Berth starts runs of a strategy.
// +kubebuilder:validation:Enum=Enabled;Disabled
type StrategyState string

const (
	// StrategyEnabled permits runs to start unless the breaker is open.
	StrategyEnabled StrategyState = "Enabled"
	// StrategyDisabled makes new runs wait.
	StrategyDisabled StrategyState = "Disabled"
)

// StrategySpec is the desired state of a Strategy.
// +kubebuilder:validation:XValidation:rule="has(self.process.command) || has(self.runtime) && has(self.runtime.pod)",fieldPath=".process.command",reason="FieldValueRequired",message="command is required unless runtime.pod.image names an image whose entrypoint runs instead; set process.command"
// +kubebuilder:validation:XValidation:rule="!has(self.process.resumeCommand)",fieldPath=".process.resumeCommand",reason="FieldValueForbidden",message="only Instances support resumeCommand; remove process.resumeCommand"
type StrategySpec struct {
	// description explains the strategy to users. At most 1024 characters.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Description string `json:"description,omitempty"`

	// state determines whether Berth starts runs: Enabled or Disabled. While it is Disabled, new runs wait. Defaults to Enabled.
	// +optional
	// +kubebuilder:default=Enabled
	State StrategyState `json:"state,omitempty"`

	// process is the program that a run executes. A run copies the program when the run starts, so changes apply only to later runs. The program gets
	// each argument of the run as an environment variable: the argument go-version becomes ARG_GO_VERSION.
	// +required
	Process ProcessTemplate `json:"process"`

	// runtime selects where runs execute. Defaults to the runtime with which the manager was started.
	// +optional
	Runtime *RuntimeSpec `json:"runtime,omitempty"`

	// timeoutSeconds is the maximum duration of a run, in seconds. Berth stops a run that takes longer, with the outcome TimedOut. 1 to 2592000 (30
	// days). Defaults to 3600.
	// +optional
	// +kubebuilder:default=3600
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2592000
	TimeoutSeconds *int32 `json:"timeoutSeconds,omitempty"`

	// breaker states when Berth stops starting runs because too many have failed.
	// +optional
	// +kubebuilder:default={}
	Breaker StrategyBreaker `json:"breaker,omitzero"`

	// resetToken requests a reset. Any new value closes the breaker and starts a new epoch. Runs that started before the reset no longer
	// affect the breaker. At most 256 characters.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	ResetToken string `json:"resetToken,omitempty"`

	// ttlSecondsAfterFinished is the time, in seconds, after which Berth deletes a run that has finished and was counted. 0 to 31536000 (one year).
	// Unset: only historyLimit deletes runs.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=31536000
	TTLSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished,omitempty"`

	// historyLimit is the maximum number of finished runs that Berth keeps; it deletes the oldest first. Runs of a Plan do not count, because they are
	// deleted with their Plan. 0 to 10000. Defaults to 100.
	// +optional
	// +kubebuilder:default=100
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	HistoryLimit *int32 `json:"historyLimit,omitempty"`
}

// StrategyBreaker states when Berth stops starting runs: after failureThreshold failures without a success between them.
type StrategyBreaker struct {
	// failureThreshold is the number of failures (outcomes Failed and TimedOut) that opens the breaker. 1 to 100000. Defaults to 3.
	// +optional
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	FailureThreshold *int32 `json:"failureThreshold,omitempty"`

	// coolDownSeconds is the time until an open breaker allows one trial run, in seconds. 0 to 2592000 (30 days). 0: the breaker stays open until
	// spec.resetToken changes. Defaults to 0.
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2592000
	CoolDownSeconds *int32 `json:"coolDownSeconds,omitempty"`
}

// StrategyStatus is the observed state of a Strategy.
type StrategyStatus struct {
	// observedGeneration is the generation of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// observedResetToken is the last resetToken that Berth acted on.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	ObservedResetToken string `json:"observedResetToken,omitempty"`

	// epoch is the number of resets. A run belongs to the epoch in which it started.
	// +optional
	Epoch int64 `json:"epoch,omitempty"`

	// breaker is the state of the circuit breaker. It opens when the number of failures reaches the threshold, and again if a trial run fails.
	// +optional
	Breaker *StrategyBreakerStatus `json:"breaker,omitempty"`

	// totals are the numbers of finished runs by outcome, since the strategy was created.
	// +optional
	Totals StrategyTotals `json:"totals,omitzero"`

	// counted lists the UIDs of runs that were counted and still have the finalizer berth.dev/count. At most 256. Berth does not count a listed run
	// again.
	// +optional
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:Type=string
	// +kubebuilder:validation:items:MaxLength=64
	// +listType=set
	Counted []types.UID `json:"counted,omitempty"`

	// conditions describe the current state of the strategy. Ready, Reconciling and Stalled are always set. CircuitOpen is set only while the breaker is
	// open.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// StrategyBreakerStatus is the state of a strategy's breaker.
type StrategyBreakerStatus struct {
	// state is Closed, Open or HalfOpen.
	// +required
	State BreakerState `json:"state"`

	// failures is the number of failures since the last success or reset.
	// +optional
	// +kubebuilder:default=0
	Failures int32 `json:"failures,omitempty"`

	// openTime is when the breaker last opened.
	// +optional
	OpenTime *metav1.MicroTime `json:"openTime,omitempty"`

	// trial is the UID of the trial run. Set only while the breaker is HalfOpen.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	Trial types.UID `json:"trial,omitempty"`

	// trialName is the name of the trial run.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	TrialName string `json:"trialName,omitempty"`

	// trialTime is when the run became the trial run. If it has not started one minute later, another run that can start becomes the trial run.
	// +optional
	TrialTime *metav1.MicroTime `json:"trialTime,omitempty"`
}

// StrategyTotals counts runs by outcome.
type StrategyTotals struct {
	// succeeded is the number of runs that exited with code 0.
	// +optional
	Succeeded int64 `json:"succeeded,omitempty"`
	// failed is the number of runs whose program failed, could not be executed, or has an unknown exit status.
	// +optional
	Failed int64 `json:"failed,omitempty"`
	// timedOut is the number of runs that took longer than timeoutSeconds.
	// +optional
	TimedOut int64 `json:"timedOut,omitempty"`
	// cancelled is the number of runs that were cancelled.
	// +optional
	Cancelled int64 `json:"cancelled,omitempty"`
	// skippedCircuitOpen is the number of runs that were not started because the breaker was open.
	// +optional
	SkippedCircuitOpen int64 `json:"skippedCircuitOpen,omitempty"`
}

// Strategy is a template for runs: a program, a timeout, and a circuit breaker that all runs share.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=berth,shortName=strat
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="Status of the condition Ready"
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.spec.state`,description="Whether the strategy starts runs"
// +kubebuilder:printcolumn:name="Breaker",type=string,JSONPath=`.status.breaker.state`,description="State of the circuit breaker"
// +kubebuilder:printcolumn:name="Failures",type=integer,JSONPath=`.status.breaker.failures`,description="Failures since the last success or reset"
// +kubebuilder:printcolumn:name="Succeeded",type=integer,JSONPath=`.status.totals.succeeded`,description="Number of runs that succeeded"
// +kubebuilder:printcolumn:name="Failed",type=integer,JSONPath=`.status.totals.failed`,description="Number of runs that failed"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`,description="Time since the object was created"
// +kubebuilder:selectablefield:JSONPath=`.spec.runtime.type`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 63",message="the name must have at most 63 characters, because it is the value of a label of its runs"
type Strategy struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the metadata that all Kubernetes objects have.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired state.
	// +required
	Spec StrategySpec `json:"spec"`

	// status is the observed state. Only Berth writes it.
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
