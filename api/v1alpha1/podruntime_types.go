// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
)

// PodRuntime describes the Pod of an incarnation. Each incarnation is a separate Pod, whose container main runs the command of the spec, or the
// entrypoint of its image if the spec has no command. The Pod
// meets the Pod Security Standard restricted unless template requests otherwise.
type PodRuntime struct {
	// image is the image of the container in which the program runs. At most 512 characters. It must specify a numeric user other than root, unless
	// template sets runAsUser.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image"`

	// imagePullPolicy states when the node pulls the image: Always, Never or IfNotPresent. Defaults to the policy that Kubernetes derives from the tag
	// of the image.
	// +optional
	// +kubebuilder:validation:Enum=Always;Never;IfNotPresent
	ImagePullPolicy PullPolicy `json:"imagePullPolicy,omitempty"`

	// resources are the resource limits and requests of the container in which the program runs.
	// +optional
	Resources PodResources `json:"resources,omitzero"`

	// volumes are the volumes of the Pod, as in Kubernetes. At most 64.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:Type=object
	// +kubebuilder:validation:items:XPreserveUnknownFields
	// +kubebuilder:validation:items:MaxProperties=8
	// +listType=atomic
	Volumes []runtime.RawExtension `json:"volumes,omitempty"`

	// volumeMounts are the paths in the container at which the volumes are mounted, as in Kubernetes. At most 64.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:Type=object
	// +kubebuilder:validation:items:XPreserveUnknownFields
	// +kubebuilder:validation:items:MaxProperties=16
	// +listType=atomic
	VolumeMounts []runtime.RawExtension `json:"volumeMounts,omitempty"`

	// volumeClaimTemplates are claims for volumes that outlive incarnations. Berth creates each claim with the first Pod and deletes it with the object.
	// Changes do not affect an existing claim. At most 16.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	VolumeClaimTemplates []PodClaim `json:"volumeClaimTemplates,omitempty"`

	// nodeSelector lists labels that the node of the Pod must have. At most 32.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`

	// tolerations list the taints of nodes that the Pod tolerates, as in Kubernetes. At most 32.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:Type=object
	// +kubebuilder:validation:items:XPreserveUnknownFields
	// +kubebuilder:validation:items:MaxProperties=8
	// +listType=atomic
	Tolerations []runtime.RawExtension `json:"tolerations,omitempty"`

	// serviceAccountName is the name of the ServiceAccount of the Pod. Its token is not mounted unless template sets automountServiceAccountToken. At
	// most 253 characters.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ServiceAccountName string `json:"serviceAccountName,omitempty"`

	// template is a strategic merge patch, as with kubectl patch, for the Pod that results from the other fields. The patch has the fields metadata
	// (labels and annotations) and spec. It cannot change the image and the command of the container main.
	// +optional
	// +kubebuilder:validation:Type=object
	// +kubebuilder:validation:MaxProperties=4
	// +kubebuilder:pruning:PreserveUnknownFields
	Template *runtime.RawExtension `json:"template,omitempty"`
}

// PodResources are the resources of the container in which the program runs.
type PodResources struct {
	// limits are the maximum amounts that the container may use, such as {cpu: "2", memory: 1Gi}. At most 16 entries.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	Limits map[string]resource.Quantity `json:"limits,omitempty"`

	// requests are the amounts that are reserved for the container. At most 16 entries.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	Requests map[string]resource.Quantity `json:"requests,omitempty"`
}

// PodClaim is a claim for a volume that outlives incarnations.
type PodClaim struct {
	// name is the name of the volume in the Pod, at most 63 characters. The name of the PersistentVolumeClaim begins with the name of the object.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`

	// mountPath is the path in the container at which the volume is mounted; an absolute path of at most 4096 characters.
	// +required
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:Pattern=`^/`
	MountPath string `json:"mountPath"`

	// spec describes the requested volume, like the spec of a PersistentVolumeClaim.
	// +required
	// +kubebuilder:validation:Type=object
	// +kubebuilder:validation:MaxProperties=16
	// +kubebuilder:pruning:PreserveUnknownFields
	Spec runtime.RawExtension `json:"spec"`
}
