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
	"github.com/berth-dev/berth/internal/shim"
)

// Config is what a Pod needs beyond a process: runtime.Process.Config as JSON.
type Config struct {
	// Namespace is where the Pod is made. It must not change over the life of an object.
	Namespace string `json:"namespace"`
	// Owner is the object: when it is gone, the cluster deletes what it owned. Nil: nobody owns the Pod.
	Owner *metav1.OwnerReference `json:"owner,omitempty"`
	// Image is what the container is made of. PullPolicy is Always, Never or IfNotPresent; empty: the cluster's default.
	Image      string            `json:"image"`
	PullPolicy corev1.PullPolicy `json:"pullPolicy,omitempty"`
	// Volumes are those of the Pod, and Mounts where the program finds them.
	Volumes []corev1.Volume      `json:"volumes,omitempty"`
	Mounts  []corev1.VolumeMount `json:"mounts,omitempty"`
	// Claims are volumes that outlive the Pod.
	Claims []Claim `json:"claims,omitempty"`
	// Resources are what the program may use and is promised.
	Resources          corev1.ResourceRequirements `json:"resources,omitzero"`
	NodeSelector       map[string]string           `json:"nodeSelector,omitempty"`
	Tolerations        []corev1.Toleration         `json:"tolerations,omitempty"`
	ServiceAccountName string                      `json:"serviceAccountName,omitempty"`
	// Init run before the program, one after the other; Annotations are those of the Pod that nobody else may set.
	Init        []corev1.Container `json:"init,omitempty"`
	Annotations map[string]string  `json:"annotations,omitempty"`
	// Template is merged over the Pod that was made of all this, strategically, as kubectl patch does: metadata (labels and annotations) and spec.
	// The program's container is called main; its image and command are not for a template.
	Template json.RawMessage `json:"template,omitempty"`
}

// parse reads and checks the configuration of a process.
func parse(p runtime.Process) (Config, *facts.StartError) {
	var c Config
	if err := json.Unmarshal(p.Config, &c); err != nil {
		return c, failed("what is configured for the Pod cannot be read: %v", err)
	}
	switch {
	case c.Namespace == "":
		return c, failed("no namespace is named for the Pod")
	case c.Image == "":
		return c, failed("no image is named; set spec.runtime.pod.image")
	case len(p.Command) == 0:
		return c, failed("no command is named; set spec.process.command")
	}
	if _, known := signals[p.StopSignal]; p.StopSignal != "" && !known {
		return c, failed("%q is no signal that a node can send; correct spec.process.stopSignal", p.StopSignal)
	}
	return c, checkClaims(c.Claims)
}

var variableName = regexp.MustCompile(`^[-._a-zA-Z][-._a-zA-Z0-9]*$`)

// variables are those of a program, each once. Open ones stand in the Pod, hidden ones in a Secret.
type variables struct {
	open   []corev1.EnvVar
	hidden map[string]string
}

// environment takes the later entry of two. PATH is open: it is no secret, and explains what was not found.
func environment(p runtime.Process) (variables, *facts.StartError) {
	values, open := map[string]string{}, append([]string{"PATH"}, p.Open...)
	for _, variable := range p.Env {
		name, value, ok := strings.Cut(variable, "=")
		if !ok || !variableName.MatchString(name) || strings.ContainsRune(value, 0) {
			return variables{}, failed("the environment has an entry that is not NAME=value with a name of letters, digits, dots, dashes and underscores; correct spec.process.env")
		}
		if shim.Refused(name) {
			return variables{}, failed("the variable %s changes how every program is loaded and is refused; remove it from spec.process.env", name)
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
