// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// RestartPolicy says after which exits a process is started again.
// +kubebuilder:validation:Enum=Always;OnFailure;Never
type RestartPolicy string

const (
	// RestartAlways starts again after every exit that nobody asked for.
	RestartAlways RestartPolicy = "Always"
	// RestartOnFailure starts again after an exit code other than 0, a signal, or an exit that nobody could observe.
	RestartOnFailure RestartPolicy = "OnFailure"
	// RestartNever never starts again by itself.
	RestartNever RestartPolicy = "Never"
)

// UpdatePolicy says what a changed spec does to the process that runs.
// +kubebuilder:validation:Enum=Recreate;OnRestart
type UpdatePolicy string

const (
	// UpdateRecreate restarts the process when its spec changes.
	UpdateRecreate UpdatePolicy = "Recreate"
	// UpdateOnRestart leaves the process as it is until its next restart, and shows the difference as DriftDetected.
	UpdateOnRestart UpdatePolicy = "OnRestart"
)

// StopPolicy says how a process is asked to end. SIGKILL to the whole tree always follows.
type StopPolicy struct {
	// The signal that every process of the tree gets first. Unset means SIGHUP for an Instance in a terminal of this machine (runtimes Host and Tmux),
	// because interactive shells ignore SIGTERM and a terminal that closes sends SIGHUP. For all others it means SIGTERM. Processes that remain when the
	// program has ended get SIGTERM.
	// +optional
	// +kubebuilder:validation:Enum=SIGTERM;SIGINT;SIGHUP;SIGQUIT;SIGUSR1;SIGUSR2;SIGKILL
	Signal string `json:"signal,omitempty"`

	// Seconds between that signal and SIGKILL. Defaults to 10.
	// +optional
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=3600
	GracePeriodSeconds *int32 `json:"gracePeriodSeconds,omitempty"`
}

// BackoffPolicy is the wait before a failed process is started again: initialSeconds, doubled with every further failure up to maxSeconds, ± 25 %.
// From the second failure in a row the wait is at least 1 s, and 5 s if the process was lost (its Pod was refused or evicted, for example).
// +kubebuilder:validation:XValidation:rule="!has(self.initialSeconds) || !has(self.maxSeconds) || self.initialSeconds <= self.maxSeconds",message="initialSeconds must not be greater than maxSeconds"
type BackoffPolicy struct {
	// Seconds before the first restart. 0 restarts at once the first time. Defaults to 1.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=3600
	InitialSeconds *int32 `json:"initialSeconds,omitempty"`

	// The longest wait, in seconds. Defaults to 60.
	// +optional
	// +kubebuilder:default=60
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	MaxSeconds *int32 `json:"maxSeconds,omitempty"`

	// A process that was ready and ran for this many seconds has earned a fresh start of the back-off. Defaults to 60.
	// +optional
	// +kubebuilder:default=60
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	ResetAfterSeconds *int32 `json:"resetAfterSeconds,omitempty"`
}

// BreakerPolicy says when failures are too many: after failureThreshold failures within windowSeconds no start is tried for coolDownSeconds.
type BreakerPolicy struct {
	// Failures that open the breaker. Defaults to 5.
	// +optional
	// +kubebuilder:default=5
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	FailureThreshold *int32 `json:"failureThreshold,omitempty"`

	// Only failures of the last so many seconds count. Defaults to 180.
	// +optional
	// +kubebuilder:default=180
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	WindowSeconds *int32 `json:"windowSeconds,omitempty"`

	// Seconds until one start is tried again; any edit of the spec gives one try at once. 0: open until somebody edits the spec. Defaults to 600.
	// +optional
	// +kubebuilder:default=600
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	CoolDownSeconds *int32 `json:"coolDownSeconds,omitempty"`
}
