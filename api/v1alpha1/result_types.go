// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

const (
	// VariableResultFile names the environment variable with the path of the file in which a run can leave its result.
	VariableResultFile = "BERTH_RESULT_FILE"
	// VariableArtifacts names the environment variable with the path of the directory in which a run can leave other files.
	VariableArtifacts = "BERTH_ARTIFACTS"
	// VariableResultsStrategize names the environment variable with the path of a file with the results of the phase Strategize: one PlanResult as JSON
	// on each line. Berth sets it for the runs of later phases of a plan.
	VariableResultsStrategize = "BERTH_RESULTS_STRATEGIZE"
	// VariableResultsExecute names the environment variable with the path of a file with the results of the phase Execute, in the same format.
	VariableResultsExecute = "BERTH_RESULTS_EXECUTE"
)

// RunResult describes the result that a run left. The files are on the machine of the run until the StrategyRun is deleted. The files of a run in a
// Pod are deleted with the Pod, except for those on its volumes.
type RunResult struct {
	// summary is the text of the result file, without line breaks and control characters, truncated to 1 KiB.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Summary string `json:"summary,omitempty"`

	// problem states why Berth did not accept the result file: it is too large, it is not a regular file or, for a run in a Pod, it is not UTF-8. Unset
	// if Berth accepted the file.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Problem string `json:"problem,omitempty"`

	// file is the path of the result file. Unset for a run in a Pod, because the file is deleted with the Pod.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	File string `json:"file,omitempty"`

	// size is the size of the result file, in bytes. Berth reports larger sizes as 1125899906842624 (1 PiB). Unset if the size is unknown.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1125899906842624
	Size int64 `json:"size,omitempty"`

	// sha256 is the SHA-256 of the result file, in hexadecimal.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	SHA256 string `json:"sha256,omitempty"`

	// artifacts is the path of the directory with the other files. Unset if the directory is empty, and for a run in a Pod.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	Artifacts string `json:"artifacts,omitempty"`
}
