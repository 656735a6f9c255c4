// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// RunState is the desired state of a run.
// +kubebuilder:validation:Enum=Active;Cancelled
type RunState string

const (
	// RunActive requests that the run executes.
	RunActive RunState = "Active"
	// RunCancelled requests that the run stops, or does not start. This cannot be undone; create another run instead.
	RunCancelled RunState = "Cancelled"
)

// RunOutcome states how a run ended.
// +kubebuilder:validation:Enum=Succeeded;Failed;TimedOut;Cancelled;SkippedCircuitOpen
type RunOutcome string

const (
	// OutcomeSucceeded means that the program exited with code 0.
	OutcomeSucceeded RunOutcome = "Succeeded"
	// OutcomeFailed means that the program exited in another way, was lost, could not be executed, or has an unknown exit status.
	OutcomeFailed RunOutcome = "Failed"
	// OutcomeTimedOut means that the run took longer than its strategy permits, and was stopped.
	OutcomeTimedOut RunOutcome = "TimedOut"
	// OutcomeCancelled means that the run was stopped, or not started, because its spec or its deletion requested it.
	OutcomeCancelled RunOutcome = "Cancelled"
	// OutcomeSkipped means that no process was started, because the breaker of the strategy was open.
	OutcomeSkipped RunOutcome = "SkippedCircuitOpen"
)

// StrategyRunSpec is the desired state of a StrategyRun.
// +kubebuilder:validation:XValidation:rule="self.strategyRef == oldSelf.strategyRef",message="strategyRef is immutable; create another run"
// +kubebuilder:validation:XValidation:rule="has(self.arguments) == has(oldSelf.arguments) && (!has(self.arguments) || self.arguments == oldSelf.arguments)",message="arguments are immutable; create another run"
// +kubebuilder:validation:XValidation:rule="has(self.inputs) == has(oldSelf.inputs) && (!has(self.inputs) || self.inputs == oldSelf.inputs)",message="inputs are immutable; create another run"
// +kubebuilder:validation:XValidation:rule=`(has(self.program) ? self.program : "") == (has(oldSelf.program) ? oldSelf.program : "")`,message="program is immutable; create another run"
// +kubebuilder:validation:XValidation:rule="oldSelf.state != 'Cancelled' || self.state == 'Cancelled'",message="a cancelled run cannot become Active again; create another run"
type StrategyRunSpec struct {
	// strategyRef names the Strategy, in the same namespace, that the run executes. At most 63 characters. Immutable.
	// +required
	// +kubebuilder:validation:XValidation:rule="self.name.size() <= 63",message="the name of a strategy must have at most 63 characters"
	StrategyRef LocalReference `json:"strategyRef"`

	// state is the desired state of the run: Active or Cancelled. Cancelled stops the run, or prevents its start, and cannot be undone. Defaults to
	// Active.
	// +optional
	// +kubebuilder:default=Active
	State RunState `json:"state,omitempty"`

	// arguments are the arguments of this run. The program gets each argument as an environment variable: go-version becomes ARG_GO_VERSION. At most 64.
	// Immutable.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=name
	Arguments []RunArgument `json:"arguments,omitempty"`

	// inputs are the results of the earlier phases of the plan. Plans set this field. The environment variables BERTH_RESULTS_STRATEGIZE and
	// BERTH_RESULTS_EXECUTE of the program name files with these results, as one line of JSON for each run. At most 64. Immutable.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +listType=map
	// +listMapKey=run
	Inputs []PlanResult `json:"inputs,omitempty"`

	// program is a hash of a program. The run starts only while the strategy has this program. Plans set this field. At most 64 characters. Immutable.
	// Unset: the run starts with any program.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Program string `json:"program,omitempty"`
}

// RunArgument is one named argument. The program gets it as an environment variable, and on its command line only if the command refers to that
// variable.
type RunArgument struct {
	// name is the name of the argument: a letter, followed by letters, digits, - and _. At most 63 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-zA-Z][-_a-zA-Z0-9]*$`
	Name string `json:"name"`

	// value is the value of the argument, at most 8192 characters.
	// +optional
	// +kubebuilder:validation:MaxLength=8192
	Value string `json:"value,omitempty"`
}

// StrategyRunStatus is the observed state of a StrategyRun.
type StrategyRunStatus struct {
	ProcessStatus `json:",inline"`

	// outcome is the outcome of the run. Unset until the run has ended.
	// +optional
	Outcome RunOutcome `json:"outcome,omitempty"`

	// startTime is when the program was started. Unset if it was not started.
	// +optional
	StartTime *metav1.MicroTime `json:"startTime,omitempty"`

	// finishTime is when the run ended.
	// +optional
	FinishTime *metav1.MicroTime `json:"finishTime,omitempty"`

	// result describes the result that the run left. Unset if there is none.
	// +optional
	Result *RunResult `json:"result,omitempty"`

	// pinned is the copy of the strategy that the run made when it started. Later changes of the strategy do not affect the run.
	// +optional
	// +structType=atomic
	Pinned *PinnedStrategy `json:"pinned,omitempty"`
}

// PinnedStrategy is the copy of a strategy that a run makes when it starts.
type PinnedStrategy struct {
	// uid is the UID of the Strategy.
	// +required
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=64
	UID types.UID `json:"uid"`

	// generation is the generation of the Strategy.
	// +optional
	Generation int64 `json:"generation,omitempty"`

	// epoch is the epoch of the Strategy when the run started. The run affects the breaker only in this epoch.
	// +optional
	Epoch int64 `json:"epoch,omitempty"`

	// process describes the program.
	// +optional
	Process *ProcessTemplate `json:"process,omitempty"`

	// runtime selects where the program runs. Unset: the runtime with which the manager was started.
	// +optional
	Runtime *RuntimeSpec `json:"runtime,omitempty"`

	// timeoutSeconds is the maximum duration of the run, in seconds.
	// +optional
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`

	// ttlSecondsAfterFinished is the time after which Berth deletes the finished run, in seconds. Unset: only the historyLimit of the strategy deletes
	// the run.
	// +optional
	TTLSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished,omitempty"`
}

// StrategyRun is one execution of a Strategy: a process that Berth starts once.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=berth,shortName=srun
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="Status of the condition Ready"
// +kubebuilder:printcolumn:name="Strategy",type=string,JSONPath=`.spec.strategyRef.name`,description="Strategy that the run executes"
// +kubebuilder:printcolumn:name="Outcome",type=string,JSONPath=`.status.outcome`,description="Outcome of the run; empty: not finished"
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,description="Reason of the condition Ready"
// +kubebuilder:printcolumn:name="Started",type=date,JSONPath=`.status.startTime`,description="Time since the program was started",priority=1
// +kubebuilder:printcolumn:name="Finished",type=date,JSONPath=`.status.finishTime`,description="Time since the run ended"
// +kubebuilder:printcolumn:name="Result",type=string,JSONPath=`.status.result.summary`,description="Summary of the result",priority=1
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.status.process.node`,description="Machine or cluster node on which the process runs",priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`,description="Time since the object was created"
// +kubebuilder:selectablefield:JSONPath=`.spec.strategyRef.name`
// +kubebuilder:selectablefield:JSONPath=`.status.outcome`
type StrategyRun struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the metadata that all Kubernetes objects have.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired state.
	// +required
	Spec StrategyRunSpec `json:"spec"`

	// status is the observed state. Only Berth writes it.
	// +optional
	Status StrategyRunStatus `json:"status,omitempty"`
}

// GetProcessSpec returns an empty spec, because the process of a run is that of its Strategy.
func (r *StrategyRun) GetProcessSpec() *ProcessSpec { return &ProcessSpec{} }

// GetProcessStatus returns the part of the status that all process kinds share.
func (r *StrategyRun) GetProcessStatus() *ProcessStatus { return &r.Status.ProcessStatus }

// StrategyRunList is a list of StrategyRuns.
// +kubebuilder:object:root=true
type StrategyRunList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []StrategyRun `json:"items"`
}
