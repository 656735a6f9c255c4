// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// RunState is what is wanted of a run.
// +kubebuilder:validation:Enum=Active;Cancelled
type RunState string

const (
	// RunActive wants the run to take place.
	RunActive RunState = "Active"
	// RunCancelled wants it ended, or not begun. There is no way back: create another run.
	RunCancelled RunState = "Cancelled"
)

// RunOutcome is how a run ended.
// +kubebuilder:validation:Enum=Succeeded;Failed;TimedOut;Cancelled;SkippedCircuitOpen
type RunOutcome string

const (
	// RunSucceeded says that the program ended with exit code 0.
	RunSucceeded RunOutcome = "Succeeded"
	// RunFailed says that it ended otherwise, could not be executed, or nobody could observe its end.
	RunFailed RunOutcome = "Failed"
	// RunTimedOut says that it took longer than the strategy allows and was ended.
	RunTimedOut RunOutcome = "TimedOut"
	// RunWasCancelled says that it was ended, or not begun, because the spec or a deletion asked for it.
	RunWasCancelled RunOutcome = "Cancelled"
	// RunSkipped says that the breaker of the strategy was open; no process was started.
	RunSkipped RunOutcome = "SkippedCircuitOpen"
)

// StrategyRunSpec asks for one execution of a strategy.
// +kubebuilder:validation:XValidation:rule="self.strategyRef == oldSelf.strategyRef",message="strategyRef is immutable: create another run"
// +kubebuilder:validation:XValidation:rule="has(self.arguments) == has(oldSelf.arguments) && (!has(self.arguments) || self.arguments == oldSelf.arguments)",message="arguments are immutable: create another run"
// +kubebuilder:validation:XValidation:rule="has(self.inputs) == has(oldSelf.inputs) && (!has(self.inputs) || self.inputs == oldSelf.inputs)",message="inputs are immutable: create another run"
// +kubebuilder:validation:XValidation:rule=`(has(self.program) ? self.program : "") == (has(oldSelf.program) ? oldSelf.program : "")`,message="program is immutable: create another run"
// +kubebuilder:validation:XValidation:rule="oldSelf.state != 'Cancelled' || self.state == 'Cancelled'",message="a run that was cancelled stays so: create another run"
type StrategyRunSpec struct {
	// The Strategy, in the same namespace, that is executed. Immutable.
	// +required
	// +kubebuilder:validation:XValidation:rule="self.name.size() <= 63",message="the name of a strategy has at most 63 characters"
	StrategyRef LocalReference `json:"strategyRef"`

	// What is wanted: Active, or Cancelled, from which there is no way back. Defaults to Active.
	// +optional
	// +kubebuilder:default=Active
	State RunState `json:"state,omitempty"`

	// Arguments of this run. The program finds the argument go-version as the variable ARG_GO_VERSION. Immutable.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=name
	Arguments []RunArgument `json:"arguments,omitempty"`

	// What the earlier phases of the plan came to. The program finds them, one as JSON on each line, in the files that BERTH_RESULTS_STRATEGIZE and
	// BERTH_RESULTS_EXECUTE name. Plans set it. Immutable.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=run
	Inputs []PlanResult `json:"inputs,omitempty"`

	// Fingerprint of the program that the strategy has to have for the run to start; unset: whatever it has then. Plans set it. Immutable.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Program string `json:"program,omitempty"`
}

// RunArgument is one argument by name. It reaches the program as a variable, and is never a part of its command line unless the command names it.
type RunArgument struct {
	// Name of the argument.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-zA-Z][-_a-zA-Z0-9]*$`
	Name string `json:"name"`

	// Its value.
	// +optional
	// +kubebuilder:validation:MaxLength=8192
	Value string `json:"value,omitempty"`
}

// StrategyRunStatus is what is known of a run.
type StrategyRunStatus struct {
	ProcessStatus `json:",inline"`

	// How the run ended; unset while it has not.
	// +optional
	Outcome RunOutcome `json:"outcome,omitempty"`

	// When the program was started; unset when it never was.
	// +optional
	StartedAt *metav1.MicroTime `json:"startedAt,omitempty"`

	// When the run ended.
	// +optional
	FinishedAt *metav1.MicroTime `json:"finishedAt,omitempty"`

	// What the run has left to others; unset when that is nothing.
	// +optional
	Result *RunResult `json:"result,omitempty"`

	// What the run took over from its strategy when it started, whatever became of that since.
	// +optional
	// +structType=atomic
	Pinned *PinnedStrategy `json:"pinned,omitempty"`
}

// PinnedStrategy is a strategy as a run found it.
type PinnedStrategy struct {
	// UID of the Strategy.
	// +required
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	UID types.UID `json:"uid"`

	// Its generation.
	// +optional
	Generation int64 `json:"generation,omitempty"`

	// Its epoch: the run counts for the breaker in this one only.
	// +optional
	Epoch int64 `json:"epoch,omitempty"`

	// The program.
	// +optional
	Process *ProcessTemplate `json:"process,omitempty"`

	// Where it runs; unset for the runtime of the manager.
	// +optional
	Runtime *RuntimeSpec `json:"runtime,omitempty"`

	// Seconds that the run may take.
	// +optional
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`

	// Seconds after which the finished run is deleted.
	// +optional
	TTLSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished,omitempty"`
}

// StrategyRun is one execution of a Strategy: a process that is started once.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=berth,shortName=srun
// +kubebuilder:printcolumn:name="Strategy",type=string,JSONPath=`.spec.strategyRef.name`
// +kubebuilder:printcolumn:name="Outcome",type=string,JSONPath=`.status.outcome`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Started",type=date,JSONPath=`.status.startedAt`
// +kubebuilder:printcolumn:name="Finished",type=date,JSONPath=`.status.finishedAt`
// +kubebuilder:printcolumn:name="Result",type=string,JSONPath=`.status.result.summary`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:selectablefield:JSONPath=`.spec.strategyRef.name`
// +kubebuilder:selectablefield:JSONPath=`.status.outcome`
type StrategyRun struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// What is wanted.
	// +required
	Spec StrategyRunSpec `json:"spec"`

	// What is; written by Berth alone.
	// +optional
	Status StrategyRunStatus `json:"status,omitempty"`

	// Resolved is the spec as a process: what the run took over, or would take over, from its strategy. It is made by the controller at every
	// visit and never stored.
	Resolved *ProcessSpec `json:"-"`
}

// GetProcessSpec gives the run as a process.
func (r *StrategyRun) GetProcessSpec() *ProcessSpec {
	if r.Resolved == nil {
		r.Resolved = &ProcessSpec{}
	}
	return r.Resolved
}

// GetProcessStatus gives the part of the status that all process kinds share.
func (r *StrategyRun) GetProcessStatus() *ProcessStatus { return &r.Status.ProcessStatus }

// StrategyRunList is a list of StrategyRuns.
// +kubebuilder:object:root=true
type StrategyRunList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []StrategyRun `json:"items"`
}
