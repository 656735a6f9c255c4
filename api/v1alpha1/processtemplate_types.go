// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// ProcessTemplate says what to execute. It is argv: no shell takes part.
type ProcessTemplate struct {
	// The program and its arguments. $(NAME) is replaced by the variable NAME as Kubernetes does; $$(NAME) is left as $(NAME).
	// A program without a slash is looked for in PATH.
	// +required
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="self[0].size() > 0",message="the program, command[0], must not be empty"
	// +listType=atomic
	Command []string `json:"command"`

	// The directory to start in, absolute. Defaults to the home directory of the manager's user.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="self == '' || self.startsWith('/')",message="workingDir must be an absolute path"
	WorkingDir string `json:"workingDir,omitempty"`

	// Environment variables, added to those of the manager.
	// +optional
	// +kubebuilder:validation:MaxItems=256
	// +listType=map
	// +listMapKey=name
	Env []EnvVar `json:"env,omitempty"`

	// How the process is asked to end.
	// +optional
	// +kubebuilder:default={}
	Stop StopPolicy `json:"stop,omitzero"`
}

// EnvVar is one environment variable.
// +kubebuilder:validation:XValidation:rule="!(has(self.value) && has(self.valueFrom))",message="set value or valueFrom, not both"
// +kubebuilder:validation:XValidation:rule="!(self.name in ['LD_PRELOAD','LD_AUDIT','LD_LIBRARY_PATH','DYLD_INSERT_LIBRARIES','DYLD_LIBRARY_PATH','DYLD_FRAMEWORK_PATH'])",message="this variable changes how every program is loaded and is refused"
type EnvVar struct {
	// Name of the variable.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^[-._a-zA-Z][-._a-zA-Z0-9]*$`
	Name string `json:"name"`

	// The value; $(NAME) refers to a variable that stands earlier in the list.
	// +optional
	// +kubebuilder:validation:MaxLength=32768
	Value string `json:"value,omitempty"`

	// Where the value comes from instead.
	// +optional
	ValueFrom *EnvVarSource `json:"valueFrom,omitempty"`
}

// EnvVarSource names a key of a Secret or a ConfigMap of the same namespace.
// +kubebuilder:validation:XValidation:rule="has(self.secretKeyRef) != has(self.configMapKeyRef)",message="set exactly one of secretKeyRef and configMapKeyRef"
type EnvVarSource struct {
	// A key of a Secret.
	// +optional
	SecretKeyRef *KeyRef `json:"secretKeyRef,omitempty"`

	// A key of a ConfigMap.
	// +optional
	ConfigMapKeyRef *KeyRef `json:"configMapKeyRef,omitempty"`
}

// KeyRef names a key of an object in the same namespace.
type KeyRef struct {
	// Name of the object.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	Name string `json:"name"`

	// Key in its data.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Key string `json:"key"`
}
