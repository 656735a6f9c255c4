// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
)

// PodRuntime says what Pod an incarnation is. Its program is the command of the spec, in a container called main; each incarnation is a Pod of its own.
// It meets the Pod Security Standard restricted, unless template says otherwise.
type PodRuntime struct {
	// The image of the container that the program runs in. It must have a user other than root, by number.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image"`

	// When the node pulls the image. Unset: what Kubernetes does by default, which depends on the tag.
	// +optional
	// +kubebuilder:validation:Enum=Always;Never;IfNotPresent
	ImagePullPolicy PullPolicy `json:"imagePullPolicy,omitempty"`

	// What the program may use, and what it is promised.
	// +optional
	Resources PodResources `json:"resources,omitzero"`

	// Volumes of the Pod, as in Kubernetes.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:Type=object
	// +kubebuilder:validation:items:XPreserveUnknownFields
	// +kubebuilder:validation:items:MaxProperties=8
	// +listType=atomic
	Volumes []runtime.RawExtension `json:"volumes,omitempty"`

	// Where the program finds them, as in Kubernetes.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:Type=object
	// +kubebuilder:validation:items:XPreserveUnknownFields
	// +kubebuilder:validation:items:MaxProperties=16
	// +listType=atomic
	VolumeMounts []runtime.RawExtension `json:"volumeMounts,omitempty"`

	// Volumes that outlive incarnations: each is made when it is needed first, and goes with the object. What is there already is not changed.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	VolumeClaimTemplates []PodClaim `json:"volumeClaimTemplates,omitempty"`

	// Labels that the node has to have.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`

	// Taints of nodes that the Pod bears, as in Kubernetes.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:Type=object
	// +kubebuilder:validation:items:XPreserveUnknownFields
	// +kubebuilder:validation:items:MaxProperties=8
	// +listType=atomic
	Tolerations []runtime.RawExtension `json:"tolerations,omitempty"`

	// The ServiceAccount of the Pod. Its token is not mounted, unless template sets automountServiceAccountToken.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ServiceAccountName string `json:"serviceAccountName,omitempty"`

	// What is merged over the Pod that was made of all this, as kubectl patch does strategically: metadata with labels and annotations, and spec.
	// Image and command of the container main stay as they are said here.
	// +optional
	// +kubebuilder:validation:Type=object
	// +kubebuilder:validation:MaxProperties=4
	// +kubebuilder:pruning:PreserveUnknownFields
	Template *runtime.RawExtension `json:"template,omitempty"`
}

// PodResources are those of the container that the program runs in.
type PodResources struct {
	// What it may use at most, such as {cpu: "2", memory: 1Gi}.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	Limits map[string]resource.Quantity `json:"limits,omitempty"`

	// What it is promised.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	Requests map[string]resource.Quantity `json:"requests,omitempty"`
}

// PodClaim is a volume that outlives incarnations.
type PodClaim struct {
	// Name of the volume in the Pod. That of the PersistentVolumeClaim begins with the name of the object.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`

	// Where the program finds it; absolute.
	// +required
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:Pattern=`^/`
	MountPath string `json:"mountPath"`

	// What volume is wanted, as in a PersistentVolumeClaim.
	// +required
	// +kubebuilder:validation:Type=object
	// +kubebuilder:validation:MaxProperties=16
	// +kubebuilder:pruning:PreserveUnknownFields
	Spec runtime.RawExtension `json:"spec"`
}
