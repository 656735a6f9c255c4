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

var (
	began  = metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	ending = metav1.NewTime(began.Add(time.Minute))
)

// podWith returns a Pod on a node with the status of its kubelet.
func podWith(phase corev1.PodPhase, state corev1.ContainerState, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: podName("object", "web", 3), Namespace: "default", UID: "pod", ResourceVersion: "1", CreationTimestamp: began,
			Labels: map[string]string{LabelUID: "object", LabelIncarnation: "3"}, Annotations: map[string]string{annotationName: "devservers/default/web"}},
		Spec: corev1.PodSpec{NodeName: "node", Containers: []corev1.Container{{Name: Container, Command: []string{"serve"},
			Env: []corev1.EnvVar{{Name: "PATH", Value: "/bin:$$HOME"}}}}},
		Status: corev1.PodStatus{Phase: phase},
	}
	if state != (corev1.ContainerState{}) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "side"}, {Name: Container, Image: "image", ContainerID: "containerd://c", State: state}}
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func waitingState(reason, message string) corev1.ContainerState {
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
}

func terminatedState(code int32, reason, message string) corev1.ContainerState {
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason, Message: message, StartedAt: began, FinishedAt: ending}}
}

var running = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: began}}

func deleted(p *corev1.Pod)     { p.DeletionTimestamp = &ending }
func unscheduled(p *corev1.Pod) { p.Spec.NodeName = "" }
func stopHUP(p *corev1.Pod) {
	p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{StopSignal: ptr.To(corev1.Signal("SIGHUP"))}
}

func withCondition(kind corev1.PodConditionType, status corev1.ConditionStatus, reason, message string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: kind, Status: status, Reason: reason, Message: message, LastTransitionTime: ending})
	}
}

func TestDescribe_ReportsLivePods(t *testing.T) {
	for name, test := range map[string]struct {
		pod    *corev1.Pod
		phase  facts.Phase
		says   string
		leader *facts.Exit
	}{
		"just created":                {podWith(corev1.PodPending, corev1.ContainerState{}, unscheduled), facts.Starting, "", nil},
		"no node":                     {podWith(corev1.PodPending, corev1.ContainerState{}, unscheduled, withCondition(corev1.PodScheduled, corev1.ConditionFalse, "Unschedulable", "0/3 nodes")), facts.Starting, "not scheduled yet: Unschedulable: 0/3 nodes", nil},
		"pulling":                     {podWith(corev1.PodPending, waitingState("ImagePullBackOff", "not found")), facts.Starting, "cannot pull image image: ImagePullBackOff: not found", nil},
		"no secret":                   {podWith(corev1.PodPending, waitingState("CreateContainerConfigError", "secret x not found")), facts.Starting, "secret x not found", nil},
		"being created":               {podWith(corev1.PodPending, waitingState("ContainerCreating", "")), facts.Starting, "", nil},
		"running":                     {podWith(corev1.PodRunning, running), facts.Running, "", nil},
		"being deleted":               {podWith(corev1.PodRunning, running, deleted), facts.Running, "", nil},
		"being deleted before it ran": {podWith(corev1.PodPending, waitingState("ContainerCreating", ""), deleted), facts.Starting, "", nil},
		"program exited": {podWith(corev1.PodRunning, terminatedState(4, "Error", "")), facts.Running, "",
			&facts.Exit{Known: true, Code: 4, FinishedAt: ending.Time}},
		"program never started": {podWith(corev1.PodRunning, terminatedState(128, "StartError", "no")), facts.Starting, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			g, i := NewWithT(t), describe(test.pod)
			g.Expect(i.Phase).To(Equal(test.phase))
			g.Expect(i.Alive()).To(BeTrue())
			g.Expect(i.Message).To(ContainSubstring(test.says))
			g.Expect(i.LeaderExit).To(Equal(test.leader))
			g.Expect(i.StopSent).To(Equal(test.pod.DeletionTimestamp != nil))
			g.Expect(i.Number).To(BeEquivalentTo(3))
			g.Expect(i.Name).To(Equal("devservers/default/web"))
		})
	}
}

func TestDescribe_ReportsExits(t *testing.T) {
	known := func(code int32, signal, message string) *facts.Exit {
		return &facts.Exit{Known: true, Code: code, Signal: signal, Message: message, FinishedAt: ending.Time}
	}
	lost := func(message string, at time.Time) *facts.Exit {
		return &facts.Exit{Message: message, FinishedAt: at, Lost: true}
	}
	away := func(code int32, signal, message string) *facts.Exit {
		e := known(code, signal, message)
		e.Lost = true
		return e
	}
	byHand := "the Pod was deleted"
	later := func(p *corev1.Pod) {
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = ptr.To(metav1.NewTime(ending.Add(time.Minute))), ptr.To[int64](30)
	}
	left := func(p *corev1.Pod) { p.Annotations[annotationLeft] = "true" }
	tooLong := func(p *corev1.Pod) { p.Status.Reason, p.Status.Message = "DeadlineExceeded", "too long" }
	disrupted := withCondition(corev1.DisruptionTarget, corev1.ConditionTrue, "DeletionByPodGC", "node is gone")
	evicted := func(p *corev1.Pod) { p.Status.Reason, p.Status.Message = "Evicted", "low on memory" }
	for name, test := range map[string]struct {
		pod  *corev1.Pod
		want *facts.Exit
	}{
		"exit 0":                     {podWith(corev1.PodSucceeded, terminatedState(0, "Completed", "")), known(0, "", "")},
		"with a code":                {podWith(corev1.PodFailed, terminatedState(37, "Error", "")), known(37, "", "")},
		"deleted":                    {podWith(corev1.PodFailed, terminatedState(143, "Error", ""), deleted), away(0, "SIGTERM", byHand)},
		"stopped by its own signal":  {podWith(corev1.PodFailed, terminatedState(129, "Error", ""), deleted, stopHUP), away(0, "SIGHUP", byHand)},
		"killed":                     {podWith(corev1.PodFailed, terminatedState(137, "Error", ""), deleted), away(0, "SIGKILL", byHand)},
		"deleted, exit 0":            {podWith(corev1.PodSucceeded, terminatedState(0, "Completed", ""), deleted), away(0, "", byHand)},
		"exit 0 before the deletion": {podWith(corev1.PodSucceeded, terminatedState(0, "Completed", ""), later), known(0, "", "")},
		"deadline exceeded":          {podWith(corev1.PodFailed, terminatedState(137, "Error", ""), tooLong), known(137, "", "the node terminated the Pod: DeadlineExceeded: too long")},
		"SIGTERM from elsewhere":     {podWith(corev1.PodFailed, terminatedState(143, "Error", "")), known(143, "", "exit code 143: either SIGTERM terminated the program, or the program exited with this code")},
		"out of memory":              {podWith(corev1.PodFailed, terminatedState(137, "OOMKilled", "")), known(137, "", "the container exceeded its memory limit")},
		"evicted":                    {podWith(corev1.PodFailed, terminatedState(137, "Error", ""), evicted), known(137, "", "the node terminated the Pod: Evicted: low on memory")},
		"evicted by the node":        {podWith(corev1.PodFailed, terminatedState(137, "Error", ""), evicted, disrupted), away(137, "", "the cluster evicted the Pod: DeletionByPodGC: node is gone")},
		"exit 0, then evicted": {podWith(corev1.PodSucceeded, terminatedState(0, "Completed", ""), func(p *corev1.Pod) {
			disrupted(p)
			p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(ending.Add(time.Minute))
		}), known(0, "", "")},
		"out of memory, and deleted": {podWith(corev1.PodFailed, terminatedState(137, "OOMKilled", ""), deleted), known(137, "", "the container exceeded its memory limit")},
		"refused by the node": {podWith(corev1.PodFailed, corev1.ContainerState{}, func(p *corev1.Pod) { p.Status.Reason, p.Status.Message = "OutOfcpu", "none left" }),
			lost("the node terminated the Pod: OutOfcpu: none left", began.Time)},
		"deleted after its program exited": {podWith(corev1.PodFailed, terminatedState(3, "Error", ""), deleted, disrupted, left), known(3, "", "")},
		"deadline exceeded before it ran":  {podWith(corev1.PodFailed, corev1.ContainerState{}, tooLong), &facts.Exit{Message: "the node terminated the Pod: DeadlineExceeded: too long", FinishedAt: began.Time}},
		"evicted early":                    {podWith(corev1.PodFailed, corev1.ContainerState{}, evicted), lost("the node terminated the Pod: Evicted: low on memory", began.Time)},
		"lost with its node":               {podWith(corev1.PodFailed, running, disrupted), lost("the cluster evicted the Pod: DeletionByPodGC: node is gone", ending.Time)},
		"exit unknown":                     {podWith(corev1.PodFailed, terminatedState(137, "ContainerStatusUnknown", "")), &facts.Exit{Message: "the node does not know the exit status", FinishedAt: ending.Time}},
		"deleted before it was scheduled":  {podWith(corev1.PodPending, corev1.ContainerState{}, unscheduled, deleted), lost("the Pod was terminated before it was scheduled", ending.Time)},
		"deleted before it ran":            {podWith(corev1.PodFailed, waitingState("ContainerCreating", ""), deleted), lost("the Pod ended before its program started", began.Time)},
	} {
		t.Run(name, func(t *testing.T) {
			g, i := NewWithT(t), describe(test.pod)
			g.Expect(i.Phase).To(Equal(facts.Exited))
			g.Expect(i.Exit).To(Equal(test.want))
			g.Expect(ended(test.pod)).To(BeTrue())
		})
	}
}

func TestDescribe_ReportsStartErrors(t *testing.T) {
	given := func(p *corev1.Pod) {
		p.Annotations[annotationFailed] = `{"Reason":"StartFailed","Message":"no such image"}`
	}
	broken := func(p *corev1.Pod) { p.Annotations[annotationFailed] = `{` }
	ofImage := func(p *corev1.Pod) { p.Spec.Containers[0].Command = nil }
	const oci = "failed to create containerd task: OCI runtime create failed: unable to start container process: "
	for name, test := range map[string]struct {
		pod          *corev1.Pod
		reason, says string
	}{
		"missing program": {podWith(corev1.PodFailed, terminatedState(128, "StartError", oci+`exec: "serve": executable file not found in $PATH`)), v1alpha1.ReasonCommandNotFound, "PATH=/bin:$HOME"},
		"not executable":  {podWith(corev1.PodFailed, terminatedState(128, "StartError", oci+`exec: "/x": permission denied`)), v1alpha1.ReasonPermissionDenied, "serve"},
		"missing entrypoint": {podWith(corev1.PodFailed, terminatedState(128, "StartError", oci+`exec: "/run.sh": stat /run.sh: no such file or directory`), ofImage),
			v1alpha1.ReasonCommandNotFound, "the entrypoint of the image cannot be executed; set spec.process.command, or use another image: " + oci + `exec: "/run.sh"`},
		"entrypoint not executable": {podWith(corev1.PodFailed, terminatedState(128, "StartError", oci+`exec: "/run.sh": permission denied`), ofImage),
			v1alpha1.ReasonPermissionDenied, `exec: "/run.sh"`},
		"missing directory": {podWith(corev1.PodFailed, terminatedState(128, "StartError", oci+`chdir to cwd ("/x") failed`)), v1alpha1.ReasonWorkingDirMissing, "/x"},
		"anything else":     {podWith(corev1.PodFailed, terminatedState(128, "ContainerCannotRun", "moon")), v1alpha1.ReasonStartFailed, "moon"},
		"Berth gave up":     {podWith(corev1.PodFailed, terminatedState(137, "ContainerStatusUnknown", ""), given, deleted), v1alpha1.ReasonStartFailed, "no such image"},
		"unreadable":        {podWith(corev1.PodFailed, corev1.ContainerState{}, broken, deleted), v1alpha1.ReasonStartFailed, annotationFailed},
	} {
		t.Run(name, func(t *testing.T) {
			g, i := NewWithT(t), describe(test.pod)
			g.Expect(i.Phase).To(Equal(facts.Failed))
			g.Expect(i.StartError.Reason).To(Equal(test.reason))
			g.Expect(i.StartError.Message).To(ContainSubstring(test.says))
			g.Expect(i.Exit).To(BeNil())
		})
	}
}

func TestHopeless_DetectsPodsThatCannotRun(t *testing.T) {
	g := NewWithT(t)
	for _, state := range []corev1.ContainerState{running, waitingState("ContainerCreating", ""), waitingState("ImagePullBackOff", ""), waitingState("CreateContainerConfigError", "no secret")} {
		g.Expect(hopeless(podWith(corev1.PodPending, state))).NotTo(HaveOccurred())
	}
	for reason, says := range map[string]string{"InvalidImageName": "invalid image name", "ErrImageNeverPull": "must not pull",
		"CreateContainerConfigError": "as root"} {
		g.Expect(hopeless(podWith(corev1.PodPending, waitingState(reason, "container has runAsNonRoot")))).To(MatchError(ContainSubstring(says)))
	}
}

func TestHopeless_DetectsImageWithoutEntrypoint(t *testing.T) {
	g := NewWithT(t)
	said := `failed to generate container "6a3c" spec: failed to generate spec: no command specified`
	refused := hopeless(podWith(corev1.PodPending, waitingState("CreateContainerError", said)))
	g.Expect(refused).To(MatchError(ContainSubstring("has neither an entrypoint nor a command")))
	g.Expect(refused.Reason).To(Equal(v1alpha1.ReasonCommandNotFound))
	g.Expect(hopeless(podWith(corev1.PodPending, waitingState("CreateContainerError", "context deadline exceeded")))).NotTo(HaveOccurred(), "the kubelet retries")
}

func TestSilent_DetectsUnresponsiveNodes(t *testing.T) {
	g := NewWithT(t)
	ready := func(p *corev1.Pod) { p.Status.ContainerStatuses[1].Ready = true }
	notReady := withCondition(corev1.PodReady, corev1.ConditionFalse, "", "")
	recently := func(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.Now()) }
	g.Expect(silent(podWith(corev1.PodRunning, running))).To(BeFalse())
	g.Expect(silent(podWith(corev1.PodRunning, running, notReady))).To(BeFalse(), "the kubelet reports not ready")
	g.Expect(silent(podWith(corev1.PodRunning, running, ready, notReady))).To(BeTrue(), "the cluster reports not ready")
	g.Expect(silent(podWith(corev1.PodRunning, running, recently))).To(BeFalse())
	g.Expect(silent(podWith(corev1.PodRunning, running, deleted))).To(BeTrue(), "its deletion is overdue")
}
