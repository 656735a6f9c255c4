// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime/oci"
)

// hopeless returns why a waiting Pod can never run, or nil if it may run later. A failed image pull is not such a reason, because a later pull may succeed.
func hopeless(p *corev1.Pod) *facts.StartError {
	if finished(p) || begun(p) {
		return nil
	}
	for _, c := range containers(p) {
		w := c.State.Waiting
		if w == nil {
			continue
		}
		switch {
		case c.Name == Container && w.Reason == "CreateContainerError" && strings.Contains(strings.ToLower(w.Message), "no command specified"):
			return oci.NoCommand(c.Image)
		case w.Reason == "InvalidImageName":
			return oci.Failed("%sinvalid image name %q; correct it", named(c), c.Image)
		case w.Reason == "ErrImageNeverPull":
			return oci.Failed("%sthe node does not have image %s and must not pull it; load the image on the node, or set another pull policy", named(c), c.Image)
		case w.Reason == "CreateContainerConfigError" && strings.Contains(w.Message, "runAsNonRoot"):
			return oci.Failed("%simage %s runs as root or as a non-numeric user, which Berth does not permit; use another image, or set runAsUser in spec.runtime.pod.template: %s",
				named(c), c.Image, w.Message)
		}
	}
	return nil
}

// classify derives from the message of a container runtime why a program could not be executed.
func classify(p *corev1.Pod, said string) *facts.StartError {
	if refusal := oci.Refusal(said, program(p), pathOf(p)); refusal != nil {
		return refusal
	}
	if oci.Mentions(said)("not a directory") {
		return oci.NoDirectory(said)
	}
	return oci.Failed("the node cannot start the container: %s", said)
}

// pathOf returns the value of PATH that the Pod sets for the program, or "".
func pathOf(p *corev1.Pod) (path string) {
	if main := mainOf(p); main != nil {
		for _, variable := range main.Env {
			if variable.Name == "PATH" {
				path = strings.ReplaceAll(variable.Value, "$$", "$")
			}
		}
	}
	return path
}

// program returns the program that the spec names, or "" if the container runs the entrypoint of its image.
func program(p *corev1.Pod) string {
	if main := mainOf(p); main != nil && len(main.Command) > 0 {
		return strings.ReplaceAll(main.Command[0], "$$", "$")
	}
	return ""
}

// refusedBy returns a StartError if a retry of the rejected creation would fail in the same way, or nil if a retry may succeed.
func refusedBy(err error) *facts.StartError {
	said := err.Error()
	switch {
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		return oci.Failed("the API server rejects the Pod; correct spec.runtime.pod: %s", said)
	case apierrors.IsForbidden(err) && strings.Contains(said, "violates PodSecurity"):
		return oci.Failed("the Pod Security level of the namespace rejects the Pod; correct spec.runtime.pod.template, or change the level of the namespace: %s", said)
	case apierrors.IsForbidden(err) && strings.Contains(said, "denied request"):
		return oci.Failed("a policy of the cluster rejects the Pod: %s", said)
	}
	return nil
}
