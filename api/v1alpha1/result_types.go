// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

const (
	// VariableResultFile is the variable of a run that names the file for its result.
	VariableResultFile = "BERTH_RESULT_FILE"
	// VariableArtifacts is the variable of a run that names the folder for whatever else it leaves to others.
	VariableArtifacts = "BERTH_ARTIFACTS"
	// VariableResultsStrategize is the variable of a run of a plan that names a file with the results of Strategize, once that was: one PlanResult as
	// JSON on each line.
	VariableResultsStrategize = "BERTH_RESULTS_STRATEGIZE"
	// VariableResultsExecute is the same for Execute.
	VariableResultsExecute = "BERTH_RESULTS_EXECUTE"
)

// RunResult is what a run has left to others, by reference. It is on the machine of the run until the StrategyRun goes. What a run in a Pod has left is
// nowhere else but here, and on the volumes of the Pod.
type RunResult struct {
	// The text of the result file, cut where it is too long for a status, without line breaks and control characters.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Summary string `json:"summary,omitempty"`

	// Why the result file was not taken: it is too large, or no ordinary file; of a run in a Pod also, that it is not UTF-8.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Problem string `json:"problem,omitempty"`

	// Path of the result file. Unset for a run in a Pod, with which the file goes.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	File string `json:"file,omitempty"`

	// The size of the result file in bytes; the greatest stands for all that is greater. Unset when it is not known.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1125899906842624
	Size int64 `json:"size,omitempty"`

	// The SHA-256 of its content, in hexadecimal.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	SHA256 string `json:"sha256,omitempty"`

	// Path of the folder of artifacts; unset when it is empty, and for a run in a Pod.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	Artifacts string `json:"artifacts,omitempty"`
}
