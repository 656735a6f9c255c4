// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// BreakerState is the state of a circuit breaker.
// +kubebuilder:validation:Enum=Closed;Open;HalfOpen
type BreakerState string

const (
	// BreakerClosed lets starts through.
	BreakerClosed BreakerState = "Closed"
	// BreakerOpen keeps the process from being started.
	BreakerOpen BreakerState = "Open"
	// BreakerHalfOpen lets one start through, whose outcome decides.
	BreakerHalfOpen BreakerState = "HalfOpen"
)

// ProcessStatus is what all kinds that are a process report.
type ProcessStatus struct {
	// The generation of the spec that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Counts the starts of a process for this object. Recorded, here or as reserved, before the process is started.
	// +optional
	Incarnation int64 `json:"incarnation,omitempty"`

	// The incarnation that may be started before that is recorded, which is the next one. One write then tells how this one ended, if it did, and
	// that the next one runs. A reservation that was not used stays, and means nothing. Unset where a start is recorded first.
	// +optional
	ReservedIncarnation int64 `json:"reservedIncarnation,omitempty"`

	// hostName is the host whose manager holds the process. It is empty before the first start, after the object was moved, and with the runtime Pod.
	// No other host starts a process of this object while it is set.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	HostName string `json:"hostName,omitempty"`

	// Fingerprint of the part of the spec that the current incarnation was started from.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	SpecHash string `json:"specHash,omitempty"`

	// The restartToken that the current incarnation has answered.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	ObservedRestartToken string `json:"observedRestartToken,omitempty"`

	// The resetToken that was carried out last.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	ObservedResetToken string `json:"observedResetToken,omitempty"`

	// How often a process was started again, for whatever reason.
	// +optional
	// +kubebuilder:default=0
	RestartCount int64 `json:"restartCount,omitempty"`

	// The process of the current incarnation; unset while there is none.
	// +optional
	// +structType=atomic
	Process *ProcessReference `json:"process,omitempty"`

	// The end that was asked for and is not seen yet.
	// +optional
	// +structType=atomic
	Stopping *StopRequest `json:"stopping,omitempty"`

	// How the last incarnation that ended did so.
	// +optional
	// +structType=atomic
	LastExit *ProcessExit `json:"lastExit,omitempty"`

	// Failures in a row that the back-off has counted.
	// +optional
	Failures int32 `json:"failures,omitempty"`

	// When the process is started again, while it waits for that.
	// +optional
	NextRestartTime *metav1.MicroTime `json:"nextRestartTime,omitempty"`

	// The circuit breaker.
	// +optional
	Breaker *BreakerStatus `json:"breaker,omitempty"`

	// What is true of the object; see the manual of its kind.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ProcessReference identifies a process of a host beyond the reuse of its PID: boot, PID and start time together.
type ProcessReference struct {
	// The incarnation that this process is.
	// +required
	Incarnation int64 `json:"incarnation"`

	// Name of the machine.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node,omitempty"`

	// Process id of the program.
	// +optional
	PID int64 `json:"pid,omitempty"`

	// Start of the process in clock ticks since boot (/proc/PID/stat, field 22). 0 where the system does not tell.
	// +optional
	StartTicks int64 `json:"startTicks,omitempty"`

	// Id of the boot that the PID belongs to.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	BootID string `json:"bootID,omitempty"`

	// Name of the Pod, with the runtime Pod.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	PodName string `json:"podName,omitempty"`

	// Id of the container, with the runtimes Docker and Pod.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	ContainerID string `json:"containerID,omitempty"`

	// When it was started.
	// +optional
	StartedAt *metav1.MicroTime `json:"startedAt,omitempty"`
}

// StopRequest is an end that was asked for: recorded before the first signal.
type StopRequest struct {
	// The incarnation that is to end; no other is touched.
	// +required
	Incarnation int64 `json:"incarnation"`

	// Why: Requested, SpecChanged, Unhealthy (or Hung, ProtocolError, MemoryLimit, CanaryFailed), Idle, Stopped, Deleting or Superseded.
	// +required
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason"`

	// When the whole tree is killed. It may come closer, never move away.
	// +required
	Deadline metav1.MicroTime `json:"deadline"`
}

// ProcessExit is how a process ended.
type ProcessExit struct {
	// The incarnation that ended.
	// +required
	Incarnation int64 `json:"incarnation"`

	// The exit code; unset when a signal ended the process or nobody could observe the end.
	// +optional
	ExitCode *int32 `json:"exitCode,omitempty"`

	// The signal that ended it, such as SIGKILL.
	// +optional
	// +kubebuilder:validation:MaxLength=32
	Signal string `json:"signal,omitempty"`

	// Completed, Failed, Stopped (it was asked to end), Lost (somebody took its Pod away), Unknown (nobody could observe the end), Unhealthy and its kin, or why it
	// could not be started.
	// +required
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason"`

	// What there is to say about it, such as that a container held more memory than it may.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`

	// When it ended, as far as that is known.
	// +optional
	FinishedAt *metav1.MicroTime `json:"finishedAt,omitempty"`
}

// BreakerStatus is the state of the circuit breaker.
type BreakerStatus struct {
	// Closed, Open or HalfOpen.
	// +required
	State BreakerState `json:"state"`

	// When the failures that count happened, oldest first.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +listType=atomic
	Failures []metav1.MicroTime `json:"failures,omitempty"`

	// When it opened.
	// +optional
	OpenedAt *metav1.MicroTime `json:"openedAt,omitempty"`
}
