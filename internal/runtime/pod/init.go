// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime/oci"
)

// initializing returns the init container for which the program waits, or nil if the program waits for none.
func initializing(p *corev1.Pod) *corev1.ContainerStatus {
	for i := range p.Status.InitContainerStatuses {
		c := &p.Status.InitContainerStatuses[i]
		sidecar := c.Started != nil && *c.Started && c.State.Running != nil // the next containers do not wait for the end of a sidecar
		if done := c.State.Terminated != nil && c.State.Terminated.ExitCode == 0; !done && !sidecar {
			return c
		}
	}
	return nil
}

// failedInit returns the failure of an init container that made the Pod fail before its program ran. It returns nil if no init container failed, or if the init
// container was terminated only because its Pod was terminated.
func failedInit(p *corev1.Pod) *facts.StartError {
	c := initializing(p)
	if c == nil || c.State.Terminated == nil || said(p) != "" {
		return nil
	}
	t := c.State.Terminated
	if deletedBefore(p, t.FinishedAt) || takenAway(p, t.FinishedAt) != "" {
		return nil
	}
	more := strings.TrimSpace(t.Message)
	if t.Reason != "" && t.Reason != "Error" {
		more = strings.TrimSpace(t.Reason + " " + more)
	}
	if more != "" {
		more = ": " + more
	}
	return oci.Failed("init container %s failed with exit code %d before the program started%s; see its output with berth logs", c.Name, t.ExitCode, more)
}

// Telling returns the name of the container whose output explains the state of a Pod: an init container that failed, or else the program's container.
func Telling(p *corev1.Pod) string {
	if c := initializing(p); c != nil && c.State.Terminated != nil && !begun(p) {
		return c.Name
	}
	return Container
}

// begun reports whether the program runs or has run. From then on, a sidecar that fails is not a failed start.
func begun(p *corev1.Pod) bool {
	main := mainStatus(p)
	return main != nil && (main.State.Running != nil || main.State.Terminated != nil)
}

// containers returns the statuses of the containers that must start, in order: the init containers, then the program's container.
func containers(p *corev1.Pod) []*corev1.ContainerStatus {
	var all []*corev1.ContainerStatus
	for i := range p.Status.InitContainerStatuses {
		all = append(all, &p.Status.InitContainerStatuses[i])
	}
	if main := mainStatus(p); main != nil {
		all = append(all, main)
	}
	return all
}

// named returns a message prefix that names the container, or "" for the program's container.
func named(c *corev1.ContainerStatus) string {
	if c.Name == Container {
		return ""
	}
	return fmt.Sprintf("init container %s: ", c.Name)
}
