// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/facts"
)

// Reasons that a kubelet gives. They are not in the API's packages.
const (
	reasonOOM           = "OOMKilled"
	reasonStartError    = "StartError"
	reasonCannotRun     = "ContainerCannotRun"
	reasonStatusUnknown = "ContainerStatusUnknown"
	reasonDeadline      = "DeadlineExceeded"
)

// signals are numbers of Linux, which is what Pods run on, whatever the manager runs on.
var signals = map[string]int32{
	"SIGHUP": 1, "SIGINT": 2, "SIGQUIT": 3, "SIGABRT": 6, "SIGKILL": 9, "SIGUSR1": 10, "SIGUSR2": 12, "SIGTERM": 15,
}

// mainStatus is what the kubelet says of the program's container: nil when it has said nothing.
func mainStatus(p *corev1.Pod) *corev1.ContainerStatus {
	for i := range p.Status.ContainerStatuses {
		if p.Status.ContainerStatuses[i].Name == Container {
			return &p.Status.ContainerStatuses[i]
		}
	}
	return nil
}

// terminal says whether the kubelet, or whoever speaks for a node that is gone, has said that nothing of it lives.
func terminal(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// ended says whether nothing of a Pod lives or will. The API server assigns no Pod to a node that is being deleted.
func ended(p *corev1.Pod) bool {
	return terminal(p) || p.DeletionTimestamp != nil && p.Spec.NodeName == ""
}

// describe says what the cluster says of a Pod.
func describe(p *corev1.Pod) facts.Incarnation {
	i := facts.Incarnation{UID: p.Labels[LabelUID], Number: number(p), Name: p.Annotations[AnnotationName],
		Phase: facts.Starting, Node: p.Spec.NodeName, Containment: "Container", StopSent: p.DeletionTimestamp != nil,
		PodName: p.Name, Address: p.Status.PodIP}
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
		// Other containers of it, or what the program left, are being ended.
		i.Phase, i.LeaderExit = facts.Running, exitOf(p, main.State.Terminated)
	default:
		i.Message = waiting(p, main)
	}
	return i
}

// conclude says how it ended, or that it never ran.
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
		i.Exit = &facts.Exit{Message: "the Pod was ended before it had a node", Lost: true}
	default:
		if cause := failedInit(p); cause != nil {
			i.Phase, i.StartError = facts.Failed, cause
			return
		}
		why := takenAway(p, metav1.Time{})
		refused := said(p) != "" && p.Status.Reason != reasonDeadline // by the node, before anything ran
		i.Exit = &facts.Exit{Message: cmp.Or(why, said(p), "the Pod ended before its program ran"), Lost: p.DeletionTimestamp != nil || why != "" || refused}
	}
	if i.Exit != nil && i.Exit.FinishedAt.IsZero() {
		i.Exit.FinishedAt = endedAt(p)
	}
}

func neverRan(t *corev1.ContainerStateTerminated) bool {
	return t.Reason == reasonStartError || t.Reason == reasonCannotRun
}

// exitOf is how the program ended. A runtime for containers tells one number: a program that was ended by signal N looks like one that ended with
// 128+N. A signal is named only when the Pod was being deleted, which sends it.
func exitOf(p *corev1.Pod, t *corev1.ContainerStateTerminated) *facts.Exit {
	e := &facts.Exit{Known: true, Code: t.ExitCode, FinishedAt: t.FinishedAt.Time}
	by := func(signal string) bool { return endedBy(t.ExitCode, signal) }
	asked, stop := deletedBefore(p, t.FinishedAt), stopSignal(p)
	switch {
	case t.Reason == reasonStatusUnknown:
		e.Known, e.Code, e.Message = false, 0, "the node did not see how it ended"
	case t.Reason == reasonOOM:
		e.Message = "the container held more memory than it may"
	case asked && by("SIGKILL"):
		e.Code, e.Signal = 0, "SIGKILL"
	case asked && by(stop):
		e.Code, e.Signal = 0, stop
	default:
		e.Message = perhaps(t.ExitCode)
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

func endedBy(code int32, signal string) bool {
	n, known := signals[signal]
	return known && code == 128+n
}

// perhaps says which signal a code may stand for: empty when it is none's.
func perhaps(code int32) string {
	for name := range signals {
		if endedBy(code, name) {
			return fmt.Sprintf("%d is what a node says of a program that was ended by %s, or that ended with this code", code, name)
		}
	}
	return ""
}

// skew is how far the clock of a node may be from that of the API server.
const skew = 5 * time.Second

// deletedBefore says whether a Pod was being deleted when its program ended. A shorter grace afterwards does not change when it was asked for.
func deletedBefore(p *corev1.Pod, end metav1.Time) bool {
	if _, left := p.Annotations[AnnotationLeft]; left || p.DeletionTimestamp == nil {
		return false
	}
	asked := p.DeletionTimestamp.Add(-time.Duration(ptr.Deref(p.DeletionGracePeriodSeconds, 0)) * time.Second)
	return end.IsZero() || !end.Add(skew).Before(asked)
}

// stopSignal is what the kubelet sends first.
func stopSignal(p *corev1.Pod) string {
	for _, c := range p.Spec.Containers {
		if c.Name == Container && c.Lifecycle != nil && c.Lifecycle.StopSignal != nil {
			return string(*c.Lifecycle.StopSignal)
		}
	}
	return "SIGTERM"
}

// notOfTheProgram are reasons that nodes, and whoever speaks for one that is gone, give for ends that are none of the program's. Evicted is not among them:
// without the condition it is the Pod that held more than it may.
var notOfTheProgram = []string{"NodeLost", "NodeShutdown", "Shutdown", "Terminated", "Preempting"}

// takenAway says why the cluster took the Pod away before its program had ended: empty when it did not. What has ended by itself may be evicted, too.
func takenAway(p *corev1.Pod, end metav1.Time) string {
	if _, left := p.Annotations[AnnotationLeft]; left {
		return ""
	}
	for _, condition := range p.Status.Conditions {
		at := condition.LastTransitionTime
		before := end.IsZero() || at.IsZero() || !end.Add(skew).Before(at.Time)
		if condition.Type == corev1.DisruptionTarget && condition.Status == corev1.ConditionTrue && before {
			return fmt.Sprintf("the cluster took the Pod away: %s: %s", condition.Reason, strings.TrimSpace(condition.Message))
		}
	}
	if slices.Contains(notOfTheProgram, p.Status.Reason) {
		return said(p)
	}
	return ""
}

// said is what the node says of the end of the whole Pod: empty when it says nothing.
func said(p *corev1.Pod) string {
	if p.Status.Reason == "" {
		return ""
	}
	return fmt.Sprintf("the node ended the Pod: %s: %s", p.Status.Reason, strings.TrimSpace(p.Status.Message))
}

// endedAt is when a Pod ended whose container does not say it.
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

// waiting says what a Pod that does not run yet waits for: empty when that is nothing special.
func waiting(p *corev1.Pod, main *corev1.ContainerStatus) string {
	for _, condition := range p.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
			return fmt.Sprintf("the Pod has no node yet: %s: %s", condition.Reason, condition.Message)
		}
	}
	if first := initializing(p); first != nil {
		if first.State.Running != nil {
			return fmt.Sprintf("the init container %s runs", first.Name)
		}
		if why := holdsUp(first); why != "" {
			return fmt.Sprintf("the init container %s: %s", first.Name, why)
		}
		return ""
	}
	if main == nil {
		return ""
	}
	return holdsUp(main)
}

// holdsUp says why a container does not run yet: empty when that is nothing special.
func holdsUp(c *corev1.ContainerStatus) string {
	if c.State.Waiting == nil {
		return ""
	}
	switch w := c.State.Waiting; w.Reason {
	case "", "ContainerCreating", "PodInitializing":
		return w.Message
	case "ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError", "SignatureValidationFailed":
		return fmt.Sprintf("the node cannot get the image %s: %s: %s", c.Image, w.Reason, w.Message)
	default:
		return fmt.Sprintf("the node cannot start the container yet: %s: %s", w.Reason, w.Message)
	}
}
