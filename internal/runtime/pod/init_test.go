// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
)

// podWithInit returns a Pod whose program waits for init containers.
func podWithInit(phase corev1.PodPhase, states ...corev1.ContainerState) *corev1.Pod {
	p := podWith(phase, waitingState("PodInitializing", ""))
	for i, state := range states {
		p.Status.InitContainerStatuses = append(p.Status.InitContainerStatuses,
			corev1.ContainerStatus{Name: []string{"first", "second"}[i], Image: "tool", State: state})
	}
	return p
}

func TestInitContainer_IsReportedWhilePending(t *testing.T) {
	g := NewWithT(t)
	done := terminatedState(0, "Completed", "")
	for says, p := range map[string]*corev1.Pod{
		"":                                 podWithInit(corev1.PodPending, done),
		"init container second is running": podWithInit(corev1.PodPending, done, running),
		"init container first: the node cannot pull image tool: ErrImagePull: gone":                      podWithInit(corev1.PodPending, waitingState("ErrImagePull", "gone"), waitingState("PodInitializing", "")),
		"init container second: the node cannot start the container yet: CreateContainerConfigError: no": podWithInit(corev1.PodPending, done, waitingState("CreateContainerConfigError", "no")),
	} {
		i := describe(p)
		g.Expect(i.Phase).To(Equal(facts.Starting))
		g.Expect(i.Message).To(Equal(says))
		g.Expect(Telling(p)).To(Equal(Container))
	}
	sidecar := podWithInit(corev1.PodPending, running, waitingState("ErrImagePull", "gone"))
	sidecar.Status.InitContainerStatuses[0].Started = ptr.To(true)
	g.Expect(describe(sidecar).Message).To(HavePrefix("init container second:"), "a running sidecar does not block the program")
	g.Expect(hopeless(podWithInit(corev1.PodPending, waitingState("InvalidImageName", "")))).To(MatchError(`init container first: invalid image name "tool"; correct it`))
}

func TestInitContainer_FailureIsStartError(t *testing.T) {
	g := NewWithT(t)
	p := podWithInit(corev1.PodFailed, terminatedState(128, "Error", "no such repository\n"))
	i := describe(p)
	g.Expect(i.Phase).To(Equal(facts.Failed))
	g.Expect(i.StartError).To(HaveValue(Equal(facts.StartError{Reason: v1alpha1.ReasonStartFailed,
		Message: "init container first failed with exit code 128 before the program started: no such repository; see its output with berth logs"})))
	g.Expect(Telling(p)).To(Equal("first"))
	g.Expect(describe(podWithInit(corev1.PodFailed, terminatedState(137, "OOMKilled", ""))).StartError.Message).To(ContainSubstring("started: OOMKilled; see its output"))

	ran := podWithInit(corev1.PodRunning, terminatedState(143, "Error", ""))
	ran.Status.ContainerStatuses[1].State = running
	g.Expect(Telling(ran)).To(Equal(Container), "a sidecar that has exited no longer counts")
	ran.Status.InitContainerStatuses[0].State = waitingState("InvalidImageName", "")
	g.Expect(hopeless(ran)).NotTo(HaveOccurred(), "the program runs")

	tooLong := podWithInit(corev1.PodFailed, terminatedState(143, "Error", ""))
	tooLong.Status.Reason = "DeadlineExceeded"
	g.Expect(describe(tooLong).Exit).To(HaveField("Message", ContainSubstring("DeadlineExceeded")), "the deadline has ended the Pod")

	p.DeletionTimestamp = ptr.To(metav1.NewTime(ending.Add(time.Minute)))
	g.Expect(describe(p).Phase).To(Equal(facts.Failed), "the init container had failed before the deletion")
	p.DeletionTimestamp = &ending
	g.Expect(describe(p).Exit).To(HaveField("Lost", true), "the deletion of the Pod has ended it")
}
