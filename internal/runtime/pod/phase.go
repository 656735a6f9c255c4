// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/runtime"
)

// Reasons that a kubelet gives. They are not in the API's packages.
const (
	reasonOOM           = "OOMKilled"
	reasonStartError    = "StartError"
	reasonCannotRun     = "ContainerCannotRun"
	reasonStatusUnknown = "ContainerStatusUnknown"
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
func describe(p *corev1.Pod) runtime.Incarnation {
	i := runtime.Incarnation{UID: types.UID(p.Labels[LabelUID]), Number: number(p), Name: p.Annotations[AnnotationName],
		Phase: runtime.Starting, Node: p.Spec.NodeName, Containment: "Container", StopSent: p.DeletionTimestamp != nil,
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
		i.Phase = runtime.Running
	case main != nil && main.State.Terminated != nil && !neverRan(main.State.Terminated):
		// Other containers of it, or what the program left, are being ended.
		i.Phase, i.LeaderExit = runtime.Running, exitOf(p, main.State.Terminated)
	default:
		i.Message = waiting(p, main)
	}
	return i
}

// conclude says how it ended, or that it never ran.
func conclude(p *corev1.Pod, main *corev1.ContainerStatus, i *runtime.Incarnation) {
	if cause := givenUp(p); cause != nil {
		i.Phase, i.StartError, i.StartedAt = runtime.Failed, cause, time.Time{}
		return
	}
	i.Phase = runtime.Exited
	switch {
	case main != nil && main.State.Terminated != nil && neverRan(main.State.Terminated):
		i.Phase, i.StartError, i.StartedAt = runtime.Failed, classify(p, main.State.Terminated.Message), time.Time{}
	case main != nil && main.State.Terminated != nil:
		i.Exit = exitOf(p, main.State.Terminated)
	case p.Spec.NodeName == "":
		i.Exit = &runtime.Exit{Message: "the Pod was ended before it had a node"}
	default:
		i.Exit = &runtime.Exit{Message: cmp.Or(lost(p), "the Pod ended before its program ran")}
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
func exitOf(p *corev1.Pod, t *corev1.ContainerStateTerminated) *runtime.Exit {
	e := &runtime.Exit{Known: true, Code: t.ExitCode, FinishedAt: t.FinishedAt.Time}
	by := func(signal string) bool {
		n, known := signals[signal]
		return known && t.ExitCode == 128+n
	}
	_, before := p.Annotations[AnnotationLeft]
	asked, stop := p.DeletionTimestamp != nil && !before, stopSignal(p)
	switch {
	case t.Reason == reasonStatusUnknown:
		e.Known, e.Code, e.Message = false, 0, cmp.Or(lost(p), "the node did not see how it ended")
	case t.Reason == reasonOOM:
		e.Message = "the container held more memory than it may"
	case asked && by("SIGKILL"):
		e.Code, e.Signal = 0, "SIGKILL"
	case asked && by(stop):
		e.Code, e.Signal = 0, stop
	default:
		for name := range signals {
			if by(name) {
				e.Message = fmt.Sprintf("%d is what a node says of a program that was ended by %s, or that ended with this code", t.ExitCode, name)
			}
		}
	}
	if why := lost(p); why != "" {
		e.Message = why
	}
	return e
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

// lost says why the cluster took the Pod away: empty when it did not.
func lost(p *corev1.Pod) string {
	for _, condition := range p.Status.Conditions {
		if condition.Type == corev1.DisruptionTarget && condition.Status == corev1.ConditionTrue {
			return fmt.Sprintf("the cluster took the Pod away: %s: %s", condition.Reason, condition.Message)
		}
	}
	if p.Status.Reason == "" {
		return ""
	}
	return fmt.Sprintf("the node ended the Pod: %s: %s", p.Status.Reason, p.Status.Message)
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
	if main == nil || main.State.Waiting == nil {
		return ""
	}
	switch w := main.State.Waiting; w.Reason {
	case "", "ContainerCreating", "PodInitializing":
		return w.Message
	case "ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError", "SignatureValidationFailed":
		return fmt.Sprintf("the node cannot get the image %s: %s: %s", main.Image, w.Reason, w.Message)
	default:
		return fmt.Sprintf("the node cannot start the container yet: %s: %s", w.Reason, w.Message)
	}
}
