// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime/oci"
)

// Reasons that a kubelet sets. The API packages do not define them.
const (
	reasonOOM           = "OOMKilled"
	reasonStartError    = "StartError"
	reasonCannotRun     = "ContainerCannotRun"
	reasonStatusUnknown = "ContainerStatusUnknown"
	reasonDeadline      = "DeadlineExceeded"
)

// mainStatus returns the status of the program's container, or nil if the kubelet has not reported one.
func mainStatus(p *corev1.Pod) *corev1.ContainerStatus {
	for i := range p.Status.ContainerStatuses {
		if p.Status.ContainerStatuses[i].Name == Container {
			return &p.Status.ContainerStatuses[i]
		}
	}
	return nil
}

// finished reports whether the kubelet, or the controller that acts for a lost node, has reported that no process is left.
func finished(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// ended reports whether no process of a Pod is running or will run. A Pod that is deleted before it has a node counts as ended, because the API server does not
// bind a Pod that is being deleted.
func ended(p *corev1.Pod) bool {
	return finished(p) || p.DeletionTimestamp != nil && p.Spec.NodeName == ""
}

// describe converts the status of a Pod to an Incarnation.
func describe(p *corev1.Pod) facts.Incarnation {
	i := facts.Incarnation{UID: p.Labels[LabelUID], Number: number(p), Name: p.Annotations[annotationName],
		Phase: facts.Starting, Node: p.Spec.NodeName, Containment: "Container", StopSent: p.DeletionTimestamp != nil,
		Namespace: p.Namespace, PodName: p.Name, Address: p.Status.PodIP, Origin: origin(p)}
	main := mainStatus(p)
	if main != nil {
		i.ContainerID = main.ContainerID
		switch {
		case main.State.Running != nil:
			i.StartedAt = main.State.Running.StartedAt.Time
		case main.State.Terminated != nil:
			i.StartedAt = main.State.Terminated.StartedAt.Time
		}
	}
	switch {
	case ended(p):
		conclude(p, main, &i)
	case main != nil && main.State.Running != nil:
		i.Phase = facts.Running
	case main != nil && main.State.Terminated != nil && !neverRan(main.State.Terminated):
		// Other containers, or processes that the program left, are still being terminated.
		i.Phase, i.LeaderExit = facts.Running, exitOf(p, main.State.Terminated)
	default:
		i.Message = waiting(p, main)
	}
	return i
}

// origin returns what the incarnation of a Pod was started with; zero if the annotation is missing or not in this format.
func origin(p *corev1.Pod) (origin facts.Origin) {
	_ = json.Unmarshal([]byte(p.Annotations[annotationOrigin]), &origin)
	return origin
}

// conclude sets the exit of a Pod that has ended, or the reason why its program never ran.
func conclude(p *corev1.Pod, main *corev1.ContainerStatus, i *facts.Incarnation) {
	if cause := givenUp(p); cause != nil {
		i.Phase, i.StartError, i.StartedAt = facts.Failed, cause, time.Time{}
		return
	}
	i.Phase = facts.Exited
	switch {
	case main != nil && main.State.Terminated != nil && neverRan(main.State.Terminated):
		i.Phase, i.StartError, i.StartedAt = facts.Failed, classify(p, main.State.Terminated.Message), time.Time{}
	case main != nil && main.State.Terminated != nil:
		i.Exit = exitOf(p, main.State.Terminated)
	case p.Spec.NodeName == "":
		i.Exit = &facts.Exit{Message: "the Pod was terminated before it was scheduled", Lost: true}
	default:
		if cause := failedInit(p); cause != nil {
			i.Phase, i.StartError = facts.Failed, cause
			return
		}
		why := takenAway(p, metav1.Time{})
		refused := said(p) != "" && p.Status.Reason != reasonDeadline // rejected by the node before anything ran
		i.Exit = &facts.Exit{Message: cmp.Or(why, said(p), "the Pod ended before its program started"), Lost: p.DeletionTimestamp != nil || why != "" || refused}
	}
	if i.Exit != nil && i.Exit.FinishedAt.IsZero() {
		i.Exit.FinishedAt = endedAt(p)
	}
}

func neverRan(t *corev1.ContainerStateTerminated) bool {
	return t.Reason == reasonStartError || t.Reason == reasonCannotRun
}

// exitOf returns the exit of the program. A container runtime reports one number, so a program killed by signal N looks like one that exited with 128+N. exitOf
// reports a signal only if the Pod was being deleted, because the kubelet sends signals only then.
func exitOf(p *corev1.Pod, t *corev1.ContainerStateTerminated) *facts.Exit {
	e := &facts.Exit{Known: true, Code: t.ExitCode, FinishedAt: t.FinishedAt.Time}
	by := func(signal string) bool { return oci.EndedBy(int(t.ExitCode), signal) }
	asked, stop := deletedBefore(p, t.FinishedAt), stopSignal(p)
	switch {
	case t.Reason == reasonStatusUnknown:
		e.Known, e.Code, e.Message = false, 0, "the node does not know the exit status"
	case t.Reason == reasonOOM:
		e.Message = "the container exceeded its memory limit"
	case asked && by("SIGKILL"):
		e.Code, e.Signal = 0, "SIGKILL"
	case asked && by(stop):
		e.Code, e.Signal = 0, stop
	default:
		e.Message = oci.SignalHint(int(t.ExitCode))
	}
	why := takenAway(p, t.FinishedAt)
	e.Lost = why != "" || asked && t.Reason != reasonOOM
	switch {
	case why != "" || said(p) != "":
		e.Message = cmp.Or(why, said(p))
	case e.Lost && e.Known:
		e.Message = "the Pod was deleted"
	}
	return e
}

// skew is the assumed maximum difference between the clocks of a node and the API server.
const skew = 5 * time.Second

// deletedBefore reports whether the deletion of a Pod was requested before its program ended. It computes the time of the request from the deletion timestamp
// and the grace period; a second request with a shorter grace period changes both, so the result stays the same.
func deletedBefore(p *corev1.Pod, end metav1.Time) bool {
	if _, left := p.Annotations[annotationLeft]; left || p.DeletionTimestamp == nil {
		return false
	}
	asked := p.DeletionTimestamp.Add(-time.Duration(ptr.Deref(p.DeletionGracePeriodSeconds, 0)) * time.Second)
	return end.IsZero() || !end.Add(skew).Before(asked)
}

// stopSignal returns the signal that the kubelet sends first.
func stopSignal(p *corev1.Pod) string {
	if main := mainOf(p); main != nil && main.Lifecycle != nil && main.Lifecycle.StopSignal != nil {
		return string(*main.Lifecycle.StopSignal)
	}
	return "SIGTERM"
}

// notOfTheProgram are the reasons of Pods that ended for a cause outside the program. Nodes, or controllers that act for a lost node, set them. Evicted
// is excluded, because without the DisruptionTarget condition this reason means that the Pod exceeded its limits.
var notOfTheProgram = []string{"NodeLost", "NodeShutdown", "Shutdown", "Terminated", "Preempting"}

// takenAway returns why the cluster terminated the Pod before its program ended, or "" if the cluster did not terminate it. An eviction after the
// program has ended does not count.
func takenAway(p *corev1.Pod, end metav1.Time) string {
	if _, left := p.Annotations[annotationLeft]; left {
		return ""
	}
	for _, condition := range p.Status.Conditions {
		at := condition.LastTransitionTime
		before := end.IsZero() || at.IsZero() || !end.Add(skew).Before(at.Time)
		if condition.Type == corev1.DisruptionTarget && condition.Status == corev1.ConditionTrue && before {
			return fmt.Sprintf("the cluster evicted the Pod: %s: %s", condition.Reason, strings.TrimSpace(condition.Message))
		}
	}
	if slices.Contains(notOfTheProgram, p.Status.Reason) {
		return said(p)
	}
	return ""
}

// said returns a message with the reason why the node terminated the whole Pod, or "" if the status contains no reason.
func said(p *corev1.Pod) string {
	if p.Status.Reason == "" {
		return ""
	}
	return fmt.Sprintf("the node terminated the Pod: %s: %s", p.Status.Reason, strings.TrimSpace(p.Status.Message))
}

// endedAt estimates when a Pod ended. It is used if the status of the container does not contain the time.
func endedAt(p *corev1.Pod) time.Time {
	at := p.CreationTimestamp.Time
	for _, condition := range p.Status.Conditions {
		if condition.LastTransitionTime.After(at) {
			at = condition.LastTransitionTime.Time
		}
	}
	if p.DeletionTimestamp != nil && p.DeletionTimestamp.After(at) && p.Spec.NodeName == "" {
		at = p.DeletionTimestamp.Time
	}
	return at
}

// waiting returns a message about what a Pod that is not running waits for, or "" for an ordinary step of the start.
func waiting(p *corev1.Pod, main *corev1.ContainerStatus) string {
	for _, condition := range p.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
			return fmt.Sprintf("the Pod is not scheduled yet: %s: %s", condition.Reason, condition.Message)
		}
	}
	if first := initializing(p); first != nil {
		if first.State.Running != nil {
			return fmt.Sprintf("init container %s is running", first.Name)
		}
		if why := holdsUp(first); why != "" {
			return fmt.Sprintf("init container %s: %s", first.Name, why)
		}
		return ""
	}
	if main == nil {
		return ""
	}
	return holdsUp(main)
}

// holdsUp returns a message about why a container is not running yet, or "" for an ordinary step of the start.
func holdsUp(c *corev1.ContainerStatus) string {
	if c.State.Waiting == nil {
		return ""
	}
	switch w := c.State.Waiting; w.Reason {
	case "", "ContainerCreating", "PodInitializing":
		return w.Message
	case "ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError", "SignatureValidationFailed":
		return fmt.Sprintf("the node cannot pull image %s: %s: %s", c.Image, w.Reason, w.Message)
	default:
		return fmt.Sprintf("the node cannot start the container yet: %s: %s", w.Reason, w.Message)
	}
}
