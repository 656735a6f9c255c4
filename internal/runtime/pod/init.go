// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/facts"
)

// initializing is the init container that the program waits for: nil when none is left.
func initializing(p *corev1.Pod) *corev1.ContainerStatus {
	for i := range p.Status.InitContainerStatuses {
		c := &p.Status.InitContainerStatuses[i]
		sidecar := c.Started != nil && *c.Started && c.State.Running != nil // the next ones need not wait for its end
		if done := c.State.Terminated != nil && c.State.Terminated.ExitCode == 0; !done && !sidecar {
			return c
		}
	}
	return nil
}

// failedInit says that an init container has failed, and so the Pod, before its program ran: nil when none has, or when it was ended with its Pod.
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
	return failed("the init container %s failed with exit code %d before the program could run%s; berth logs has its output", c.Name, t.ExitCode, more)
}

// Telling is the container of a Pod whose output says what became of it: that of the program, or an init container that has failed before it.
func Telling(p *corev1.Pod) string {
	if c := initializing(p); c != nil && c.State.Terminated != nil && !begun(p) {
		return c.Name
	}
	return Container
}

// begun says whether the program has run: what becomes of sidecars afterwards says nothing of it.
func begun(p *corev1.Pod) bool {
	main := mainStatus(p)
	return main != nil && (main.State.Running != nil || main.State.Terminated != nil)
}

// containers are the statuses of those that have to start, one after the other: init containers, and that of the program.
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

// named says which container is meant, unless it is the program's.
func named(c *corev1.ContainerStatus) string {
	if c.Name == Container {
		return ""
	}
	return fmt.Sprintf("the init container %s: ", c.Name)
}
