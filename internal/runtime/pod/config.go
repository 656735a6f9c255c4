// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"encoding/json"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/oci"
	"github.com/berth-dev/berth/internal/shim"
)

// Config is the configuration of a Pod in addition to the other fields of runtime.Process. It is the JSON in runtime.Process.Config.
type Config struct {
	// Namespace is the namespace of the Pod. It must not change during the life of an object.
	Namespace string `json:"namespace"`
	// Owner is the object that owns the Pod: the cluster deletes the Pod after its owner. Nil: the Pod has no owner.
	Owner *metav1.OwnerReference `json:"owner,omitempty"`
	// Image is the image of the container. PullPolicy is Always, Never or IfNotPresent; empty: the cluster's default.
	Image      string            `json:"image"`
	PullPolicy corev1.PullPolicy `json:"pullPolicy,omitempty"`
	// Volumes are the volumes of the Pod, and Mounts the mounts of the program's container.
	Volumes []corev1.Volume      `json:"volumes,omitempty"`
	Mounts  []corev1.VolumeMount `json:"mounts,omitempty"`
	// Claims are volumes that outlive the Pod.
	Claims []Claim `json:"claims,omitempty"`
	// Resources are the resource requests and limits of the program's container.
	Resources          corev1.ResourceRequirements `json:"resources,omitzero"`
	NodeSelector       map[string]string           `json:"nodeSelector,omitempty"`
	Tolerations        []corev1.Toleration         `json:"tolerations,omitempty"`
	ServiceAccountName string                      `json:"serviceAccountName,omitempty"`
	// Init are the init containers, run in order before the program. Annotations are annotations of the Pod that a template cannot override.
	Init        []corev1.Container `json:"init,omitempty"`
	Annotations map[string]string  `json:"annotations,omitempty"`
	// Template is merged over the generated Pod with a strategic merge, as kubectl patch does: metadata (labels and annotations) and spec. The program's container
	// is named main; a template cannot change its image and command.
	Template json.RawMessage `json:"template,omitempty"`
}

// parse decodes and validates the configuration of a process.
func parse(p runtime.Process) (Config, *facts.StartError) {
	var c Config
	if err := json.Unmarshal(p.Config, &c); err != nil {
		return c, oci.Failed("cannot parse the configuration of the Pod: %v", err)
	}
	switch {
	case c.Namespace == "":
		return c, oci.Failed("no namespace is set for the Pod")
	case c.Image == "":
		return c, oci.Failed("no image is set; set spec.runtime.pod.image")
	}
	if _, known := oci.Signals[p.StopSignal]; p.StopSignal != "" && !known {
		return c, oci.Failed("nodes do not support the signal %q; correct spec.process.stop.signal", p.StopSignal)
	}
	return c, checkClaims(c.Claims)
}

var variableName = regexp.MustCompile(`^[-._a-zA-Z][-._a-zA-Z0-9]*$`)

// variables are the environment variables of a program, without duplicates. The open variables are in the Pod, the hidden variables in a Secret.
type variables struct {
	open   []corev1.EnvVar
	hidden map[string]string
}

// environment returns the variables of a process. The last of several entries with the same name applies. PATH is always open, because error messages show it.
func environment(p runtime.Process) (variables, *facts.StartError) {
	values, open := map[string]string{}, append([]string{"PATH"}, p.Open...)
	for _, variable := range p.Env {
		name, value, ok := strings.Cut(variable, "=")
		if !ok || !variableName.MatchString(name) || strings.ContainsRune(value, 0) {
			return variables{}, oci.Failed("spec.process.env contains an entry that is not NAME=value with a name of letters, digits, dots, dashes and underscores; correct it")
		}
		if shim.Refused(name) {
			return variables{}, oci.Failed("the variable %s is not permitted, because it changes how every program is loaded; remove it from spec.process.env", name)
		}
		values[name] = value
	}
	env := variables{hidden: values}
	for _, name := range open {
		if value, given := values[name]; given {
			env.open = append(env.open, corev1.EnvVar{Name: name, Value: literal(value)})
			delete(values, name)
		}
	}
	return env, nil
}
