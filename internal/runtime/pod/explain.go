// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
)

func failed(format string, args ...any) *facts.StartError {
	return &facts.StartError{Reason: v1alpha1.ReasonStartFailed, Message: fmt.Sprintf(format, args...)}
}

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
			return &facts.StartError{Reason: v1alpha1.ReasonCommandNotFound,
				Message: fmt.Sprintf("image %q has neither an entrypoint nor a command; set spec.process.command, or use another image", c.Image)}
		case w.Reason == "InvalidImageName":
			return failed("%sinvalid image name %q; correct it", named(c), c.Image)
		case w.Reason == "ErrImageNeverPull":
			return failed("%sthe node does not have image %s and must not pull it; load the image on the node, or set another pull policy", named(c), c.Image)
		case w.Reason == "CreateContainerConfigError" && strings.Contains(w.Message, "runAsNonRoot"):
			return failed("%simage %s runs as root or as a non-numeric user, which Berth does not permit; use another image, or set runAsUser in spec.runtime.pod.template: %s",
				named(c), c.Image, w.Message)
		}
	}
	return nil
}

// classify derives from the message of a container runtime why a program could not be executed, because container runtimes return no error code for this.
func classify(p *corev1.Pod, said string) *facts.StartError {
	low := strings.ToLower(said)
	has := func(words ...string) bool {
		for _, word := range words {
			if strings.Contains(low, word) {
				return true
			}
		}
		return false
	}
	name := program(p)
	switch {
	case has("chdir to cwd", "working directory", "mkdir-ing cwd", "container init: mkdir ", "not a directory"):
		return &facts.StartError{Reason: v1alpha1.ReasonWorkingDirMissing,
			Message: "spec.process.workingDir is not a directory in the container: " + said}
	case has("exec: ", "exec user process", "stat ") && has("executable file not found", "no such file or directory"):
		if name == "" {
			return ofImage(v1alpha1.ReasonCommandNotFound, said)
		}
		return notFound(p, name)
	case has("exec: ", "exec user process") && has("permission denied", "is a directory"):
		if name == "" {
			return ofImage(v1alpha1.ReasonPermissionDenied, said)
		}
		return &facts.StartError{Reason: v1alpha1.ReasonPermissionDenied,
			Message: fmt.Sprintf("%q is not an executable file in the container; correct spec.process.command or the mode of the file", name)}
	}
	return failed("the node cannot start the container: %s", said)
}

// ofImage returns why the program of an image could not be executed. The Pod does not contain the name of that program.
func ofImage(reason, said string) *facts.StartError {
	return &facts.StartError{Reason: reason, Message: "the node cannot execute the entrypoint of the image; set spec.process.command, or use another image: " + said}
}

func notFound(p *corev1.Pod, name string) *facts.StartError {
	e := &facts.StartError{Reason: v1alpha1.ReasonCommandNotFound}
	if strings.Contains(name, "/") {
		e.Message = fmt.Sprintf("%s, or the interpreter that it names, does not exist in the container; correct spec.process.command, or use an image that has it", name)
		return e
	}
	path := "its PATH"
	for _, c := range p.Spec.Containers {
		for _, variable := range c.Env {
			if c.Name == Container && variable.Name == "PATH" {
				path = "PATH=" + strings.ReplaceAll(variable.Value, "$$", "$")
			}
		}
	}
	e.Message = fmt.Sprintf("%q was not found in the container in %s; correct spec.process.command, or use an image that has it", name, path)
	return e
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
		return failed("the API server rejects the Pod; correct spec.runtime.pod: %s", said)
	case apierrors.IsForbidden(err) && strings.Contains(said, "violates PodSecurity"):
		return failed("the Pod Security level of the namespace rejects the Pod; correct spec.runtime.pod.template, or change the level of the namespace: %s", said)
	case apierrors.IsForbidden(err) && strings.Contains(said, "denied request"):
		return failed("a policy of the cluster rejects the Pod: %s", said)
	}
	return nil
}
