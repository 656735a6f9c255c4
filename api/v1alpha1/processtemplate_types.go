// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// ProcessTemplate describes the program to execute. Berth passes the command as argv, without a shell.
type ProcessTemplate struct {
	// command is the program and its arguments. $(NAME) is replaced by the value of the variable NAME, as in Kubernetes; $$(NAME) becomes the text
	// $(NAME). A program without a slash in its name is looked up in PATH. 1 to 256 entries of at most 4096 characters. Unset: the container runs the
	// entrypoint and the command of its image. Required unless runtime.pod.image or runtime.docker.image is set, and always for a LanguageServer.
	// +optional
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="self[0].size() > 0",message="the program, command[0], must not be empty"
	// +listType=atomic
	Command []string `json:"command,omitempty"`

	// resumeCommand is the program and its arguments for a start that resumes the session of an Instance: the next start after an incarnation that has run.
	// Its first start, and one start after a resume that fails at once, run command. Berth treats it like command. 1 to 256 entries of at most 4096
	// characters. Unset: every start runs command. A change does not restart a process that was started with command. Only Instances support it.
	// +optional
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="self[0].size() > 0",message="the program, resumeCommand[0], must not be empty"
	// +listType=atomic
	ResumeCommand []string `json:"resumeCommand,omitempty"`

	// workingDir is the directory in which the program starts; an absolute path of at most 4096 characters. Defaults to the first folder of the
	// workspace for a LanguageServer, to the home directory of the manager's user for other programs on a machine, and to the working directory of the
	// image in a container.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="self == '' || self.startsWith('/')",message="workingDir must be an absolute path"
	WorkingDir string `json:"workingDir,omitempty"`

	// env lists environment variables. A program with the runtime Host or Tmux also inherits the environment of the manager. At most 256.
	// +optional
	// +kubebuilder:validation:MaxItems=256
	// +listType=map
	// +listMapKey=name
	Env []EnvVar `json:"env,omitempty"`

	// envFrom lists Secrets and ConfigMaps in the same namespace. Each of their keys becomes an environment variable. A later source overrides an earlier one,
	// and env overrides all. At most 16.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	EnvFrom []EnvFromSource `json:"envFrom,omitempty"`

	// stop is how Berth stops the process.
	// +optional
	// +kubebuilder:default={}
	Stop StopPolicy `json:"stop,omitzero"`

	// logTail is whether status.lastExit.logTail contains the last lines of output of a process that failed: OnFailure or None. Unset means OnFailure, or None
	// if env or envFrom takes a value from a Secret, because the program may print it. Changing it does not restart the process.
	// +optional
	LogTail LogTail `json:"logTail,omitempty"`
}

// LogTail states when the last lines of output become a part of the status.
// +kubebuilder:validation:Enum=OnFailure;None
type LogTail string

const (
	// LogTailOnFailure stores the last lines of output of a process that failed.
	LogTailOnFailure LogTail = "OnFailure"
	// LogTailNone stores no output.
	LogTailNone LogTail = "None"
)

// EnvVar is one environment variable.
// +kubebuilder:validation:XValidation:rule="!(has(self.value) && has(self.valueFrom))",message="set value or valueFrom, not both"
// +kubebuilder:validation:XValidation:rule="!(self.name in ['LD_PRELOAD','LD_AUDIT','LD_LIBRARY_PATH','DYLD_INSERT_LIBRARIES','DYLD_LIBRARY_PATH','DYLD_FRAMEWORK_PATH'])",message="this variable is not permitted, because it changes how every program is loaded"
type EnvVar struct {
	// name is the name of the variable, at most 256 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^[-._a-zA-Z][-._a-zA-Z0-9]*$`
	Name string `json:"name"`

	// value is the value of the variable, at most 32768 characters. $(NAME) refers to a variable that precedes it in the list, or that Berth sets.
	// +optional
	// +kubebuilder:validation:MaxLength=32768
	Value string `json:"value,omitempty"`

	// valueFrom is the source of the value. It must not be set together with value.
	// +optional
	ValueFrom *EnvVarSource `json:"valueFrom,omitempty"`
}

// EnvFromSource selects a Secret or a ConfigMap in the same namespace. Exactly one of secretRef and configMapRef must be set.
// +kubebuilder:validation:XValidation:rule="has(self.secretRef) != has(self.configMapRef)",message="set exactly one of secretRef and configMapRef"
type EnvFromSource struct {
	// prefix precedes the names of the variables, at most 64 characters.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[-._a-zA-Z][-._a-zA-Z0-9]*$`
	Prefix string `json:"prefix,omitempty"`

	// secretRef selects a Secret.
	// +optional
	SecretRef *EnvFromRef `json:"secretRef,omitempty"`

	// configMapRef selects a ConfigMap.
	// +optional
	ConfigMapRef *EnvFromRef `json:"configMapRef,omitempty"`
}

// EnvFromRef selects an object in the same namespace.
type EnvFromRef struct {
	// name is the name of the object, at most 253 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	Name string `json:"name"`

	// presence states what happens if the object does not exist: Required blocks the start until it exists, Optional sets no variables. Unset: Required.
	// +optional
	Presence Presence `json:"presence,omitempty"`
}

// EnvVarSource selects a key of a Secret or of a ConfigMap in the same namespace. Exactly one of its fields must be set.
// +kubebuilder:validation:XValidation:rule="has(self.secretKeyRef) != has(self.configMapKeyRef)",message="set exactly one of secretKeyRef and configMapKeyRef"
type EnvVarSource struct {
	// secretKeyRef selects a key of a Secret.
	// +optional
	SecretKeyRef *KeyRef `json:"secretKeyRef,omitempty"`

	// configMapKeyRef selects a key of a ConfigMap.
	// +optional
	ConfigMapKeyRef *KeyRef `json:"configMapKeyRef,omitempty"`
}

// KeyRef selects a key of an object in the same namespace.
type KeyRef struct {
	// name is the name of the object, at most 253 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	Name string `json:"name"`

	// key is the key in the data of the object, at most 253 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Key string `json:"key"`

	// presence states what happens if the object or its key does not exist: Required blocks the start until both exist, Optional leaves the variable unset.
	// Unset: Required.
	// +optional
	Presence Presence `json:"presence,omitempty"`
}
