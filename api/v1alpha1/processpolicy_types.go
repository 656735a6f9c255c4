// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// RestartPolicy states after which exits Berth restarts a process.
// +kubebuilder:validation:Enum=Always;OnFailure;Never
type RestartPolicy string

const (
	// RestartAlways restarts the process after every exit that was not requested.
	RestartAlways RestartPolicy = "Always"
	// RestartOnFailure restarts the process after an exit code other than 0, a signal, or an unknown exit status.
	RestartOnFailure RestartPolicy = "OnFailure"
	// RestartNever does not restart the process after an exit.
	RestartNever RestartPolicy = "Never"
)

// UpdatePolicy states what happens to a running process when its spec changes.
// +kubebuilder:validation:Enum=Recreate;OnRestart
type UpdatePolicy string

const (
	// UpdateRecreate restarts the process when its spec changes.
	UpdateRecreate UpdatePolicy = "Recreate"
	// UpdateOnRestart leaves the process running until its next restart. The condition DriftDetected reports the difference.
	UpdateOnRestart UpdatePolicy = "OnRestart"
)

// StopPolicy states how Berth stops a process: with a first signal and, after a grace period, with SIGKILL for the whole process tree.
type StopPolicy struct {
	// signal is the first signal of a stop. With the runtimes Docker and Pod, only the program of the container receives it; with the others, every
	// process of the tree. Unset: SIGHUP for an Instance with the runtime Host or Tmux, because interactive shells ignore SIGTERM and a terminal sends
	// SIGHUP when it closes; SIGTERM for all others. Processes that remain after the program has exited receive SIGTERM.
	// +optional
	// +kubebuilder:validation:Enum=SIGTERM;SIGINT;SIGHUP;SIGQUIT;SIGUSR1;SIGUSR2;SIGKILL
	Signal string `json:"signal,omitempty"`

	// gracePeriodSeconds is the time between the first signal and SIGKILL, in seconds. 0 to 3600. 0: SIGKILL follows immediately, except in a Pod.
	// Defaults to 10.
	// +optional
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=3600
	GracePeriodSeconds *int32 `json:"gracePeriodSeconds,omitempty"`
}

// BackoffPolicy states how long Berth waits before it restarts a failed process: initialSeconds, doubled with every further failure up to maxSeconds,
// ± 25 %. If the process ran for more than 10 s, Berth restarts it immediately after the first failure. From the second consecutive failure on, the
// wait is at least 1 s, and at least 5 s if the process was lost (for example because its Pod was refused or evicted).
// +kubebuilder:validation:XValidation:rule="!has(self.initialSeconds) || !has(self.maxSeconds) || self.initialSeconds <= self.maxSeconds",message="initialSeconds must not be greater than maxSeconds"
type BackoffPolicy struct {
	// initialSeconds is the wait before the first restart, in seconds. 0 to 3600, but not more than maxSeconds. 0: the first restart is immediate.
	// Defaults to 1.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=3600
	InitialSeconds *int32 `json:"initialSeconds,omitempty"`

	// maxSeconds is the maximum wait, in seconds. 0 to 86400. Defaults to 60.
	// +optional
	// +kubebuilder:default=60
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	MaxSeconds *int32 `json:"maxSeconds,omitempty"`

	// resetAfterSeconds is how long a process that became ready must have run before Berth resets the back-off, in seconds. 1 to 86400. Defaults to 60.
	// +optional
	// +kubebuilder:default=60
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	ResetAfterSeconds *int32 `json:"resetAfterSeconds,omitempty"`
}

// BreakerPolicy states when a process has failed too often: after failureThreshold failures within windowSeconds the breaker opens, and Berth does
// not start the process for coolDownSeconds.
type BreakerPolicy struct {
	// failureThreshold is the number of failures that opens the breaker. 1 to 64. Defaults to 5.
	// +optional
	// +kubebuilder:default=5
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	FailureThreshold *int32 `json:"failureThreshold,omitempty"`

	// windowSeconds is the period in which failures are counted, in seconds: older failures do not count. 1 to 86400. Defaults to 180.
	// +optional
	// +kubebuilder:default=180
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	WindowSeconds *int32 `json:"windowSeconds,omitempty"`

	// coolDownSeconds is the time until an open breaker allows one trial start, in seconds. Any change of the spec allows a trial start immediately. 0
	// to 86400. 0: the breaker stays open until the spec changes. Defaults to 600.
	// +optional
	// +kubebuilder:default=600
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	CoolDownSeconds *int32 `json:"coolDownSeconds,omitempty"`
}
