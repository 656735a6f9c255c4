// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime/fake"
)

// newAgent returns an Instance whose spec starts a session with one command and resumes it with another.
func newAgent(namespace, name string) *v1alpha1.Instance {
	agent := newInstance(namespace, name, "agent", "--session-id", "$(SESSION_ID)")
	agent.Spec.Process.ResumeCommand = []string{"agent", "--resume", "$(SESSION_ID)", "--start=$(BERTH_INCARNATION)"}
	return agent
}

var _ = Describe("a session", func() {
	var namespace string
	BeforeEach(func(ctx context.Context) { namespace = newNamespace(ctx) })

	// expectStart waits for an incarnation and checks its command and environment.
	expectStart := func(ctx context.Context, agent *v1alpha1.Instance, incarnation int64, how v1alpha1.SessionStart) {
		GinkgoHelper()
		Eventually(func(g Gomega) {
			get(ctx, g, agent)
			g.Expect(agent.Status.Incarnation).To(Equal(incarnation))
			g.Expect(agent.Status.Resume).NotTo(BeNil())
			g.Expect(agent.Status.Resume.Start).To(Equal(how))
		}).Should(Succeed())
		process, _ := rt.Process(agent.UID)
		id, resumed := string(agent.UID), how == v1alpha1.SessionResumed
		want := []string{"agent", "--session-id", id}
		if resumed {
			want = []string{"agent", "--resume", id, fmt.Sprintf("--start=%d", incarnation)}
		}
		Expect(process.Command).To(Equal(want))
		Expect(process.Env).To(ContainElements("SESSION_ID="+id, fmt.Sprintf("BERTH_INCARNATION=%d", incarnation), fmt.Sprintf("BERTH_RESUMED=%t", resumed)))
	}

	It("is started once, and then resumed after a restart, a crash, a stop and sleep", func(ctx context.Context) {
		agent := newAgent(namespace, "agent")
		agent.Spec.Process.Env = []v1alpha1.EnvVar{{Name: "BERTH_RESUMED", Value: "true"}, {Name: "BERTH_INCARNATION", Value: "9"}} // Berth sets these variables
		agent.Spec.Backoff.InitialSeconds = ptr.To[int32](0)
		Expect(k8s.Create(ctx, agent)).To(Succeed())
		expectStart(ctx, agent, 1, v1alpha1.SessionNew)
		waitForReady(ctx, agent)
		expectNoWrites(ctx, agent)

		By("restarting it")
		update(ctx, agent, func() { agent.Spec.RestartToken = "again" })
		expectStart(ctx, agent, 2, v1alpha1.SessionResumed)
		waitForReady(ctx, agent)
		By("killing it")
		rt.Exit(agent.UID, facts.Exit{Known: true, Signal: "SIGKILL"})
		expectStart(ctx, agent, 3, v1alpha1.SessionResumed)
		waitForReady(ctx, agent)
		By("stopping and starting it")
		update(ctx, agent, func() { agent.Spec.State = v1alpha1.StateStopped })
		waitForReadyWithoutProcess(ctx, agent, v1alpha1.ReasonStopped)
		update(ctx, agent, func() { agent.Spec.State = v1alpha1.StateRunning })
		expectStart(ctx, agent, 4, v1alpha1.SessionResumed)
		waitForReady(ctx, agent)
		By("letting it sleep")
		update(ctx, agent, func() { agent.Spec.IdleTimeoutSeconds = ptr.To[int32](1) })
		waitForReadyWithoutProcess(ctx, agent, v1alpha1.ReasonIdle)
		update(ctx, agent, func() { agent.Spec.IdleTimeoutSeconds, agent.Spec.RestartToken = nil, "wake" })
		expectStart(ctx, agent, 5, v1alpha1.SessionResumed)
		waitForReady(ctx, agent)
		expectNoWrites(ctx, agent)

		By("creating another object with the same name")
		Expect(k8s.Delete(ctx, agent)).To(Succeed())
		waitUntilGone(ctx, agent)
		another := newAgent(namespace, "agent")
		Expect(k8s.Create(ctx, another)).To(Succeed())
		expectStart(ctx, another, 1, v1alpha1.SessionNew)
	})

	It("falls back to command once, with an event, if the resume fails at once", func(ctx context.Context) {
		agent := newAgent(namespace, "agent")
		agent.Spec.RestartPolicy = v1alpha1.RestartNever
		Expect(k8s.Create(ctx, agent)).To(Succeed())
		waitForReady(ctx, agent)
		update(ctx, agent, func() { agent.Spec.RestartToken = "again" })
		expectStart(ctx, agent, 2, v1alpha1.SessionResumed)
		waitForReady(ctx, agent)
		rt.Exit(agent.UID, facts.Exit{Known: true, Code: 1})
		expectStart(ctx, agent, 3, v1alpha1.SessionFallback)
		Expect(waitForCondition(ctx, agent, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonRunning).Message).
			To(Equal("Incarnation 3 is running. It runs spec.process.command, because spec.process.resumeCommand failed at once."))
		Eventually(func(g Gomega) {
			var events eventsv1.EventList
			g.Expect(k8s.List(ctx, &events, client.InNamespace(namespace))).To(Succeed())
			g.Expect(events.Items).To(ContainElement(And(HaveField("Regarding.UID", uidOf(agent)), HaveField("Type", corev1.EventTypeWarning),
				HaveField("Reason", v1alpha1.ReasonResumeFailed))))
		}).Should(Succeed())

		rt.Exit(agent.UID, facts.Exit{Known: true, Code: 1})
		waitForStalled(ctx, agent, v1alpha1.ReasonFailed)
		Expect(agent.Status.Resume.Next).To(Equal(v1alpha1.SessionResumed))
		expectNoWrites(ctx, agent)
	})

	It("keeps running if only resumeCommand changes, and uses it at the next start", func(ctx context.Context) {
		agent := newAgent(namespace, "agent")
		Expect(k8s.Create(ctx, agent)).To(Succeed())
		waitForReady(ctx, agent)
		update(ctx, agent, func() { agent.Spec.Process.ResumeCommand = []string{"agent", "--continue"} })
		waitForReady(ctx, agent)
		waitForConditionAbsent(ctx, agent, v1alpha1.ConditionDriftDetected)
		expectNoWrites(ctx, agent)
		Expect(rt.Live(agent.UID)).To(Equal([]int64{1}))

		update(ctx, agent, func() { agent.Spec.RestartToken = "again" })
		Eventually(rt.Live).WithArguments(agent.UID).Should(Equal([]int64{2}))
		process, _ := rt.Process(agent.UID)
		Expect(process.Command).To(Equal([]string{"agent", "--continue"}))
		waitForReady(ctx, agent)
		update(ctx, agent, func() { agent.Spec.Process.ResumeCommand = []string{"agent", "--continue", "--quiet"} })
		Eventually(rt.Live).WithArguments(agent.UID).Should(Equal([]int64{3}), "incarnation 2 was started with the changed command")
		waitForReady(ctx, agent)
		Expect(agent.Status.LastExit.Reason).To(Equal(v1alpha1.ReasonStopped))
	})

	It("keeps running if the command that would resume it cannot be executed", func(ctx context.Context) {
		rt.Program("no-such-agent", fake.Program{StartError: &facts.StartError{Reason: v1alpha1.ReasonCommandNotFound, Message: `program "no-such-agent" not found`}})
		agent := newAgent(namespace, "agent")
		agent.Spec.Process.ResumeCommand[0] = "no-such-agent"
		Expect(k8s.Create(ctx, agent)).To(Succeed())
		waitForReady(ctx, agent)
		update(ctx, agent, func() { agent.Spec.RestartToken = "again" })
		waitForCondition(ctx, agent, v1alpha1.ConditionDriftDetected, metav1.ConditionTrue, v1alpha1.ReasonCommandNotFound)
		Expect(rt.Live(agent.UID)).To(Equal([]int64{1}))
	})

	It("refuses a secret value in resumeCommand", func(ctx context.Context) {
		Expect(k8s.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "key"}, StringData: map[string]string{"key": "hidden"}})).To(Succeed())
		agent := newAgent(namespace, "agent")
		agent.Spec.Process.Env = []v1alpha1.EnvVar{{Name: "KEY", ValueFrom: &v1alpha1.EnvVarSource{SecretKeyRef: &v1alpha1.KeyRef{Name: "key", Key: "key"}}}}
		agent.Spec.Process.ResumeCommand = []string{"agent", "--key=$(KEY)"}
		Expect(k8s.Create(ctx, agent)).To(Succeed())
		Expect(waitForStalled(ctx, agent, v1alpha1.ReasonInvalidEnvironment)).To(HavePrefix("The value of spec.process.resumeCommand[1] refers to a variable from a Secret"))
		Expect(rt.Count(agent.UID, fake.Start)).To(BeZero())
	})

	It("leaves the environment of other kinds as it is", func(ctx context.Context) {
		server := &v1alpha1.DevServer{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}}
		server.Spec.Process.Command = []string{"serve"}
		Expect(k8s.Create(ctx, server)).To(Succeed())
		Eventually(rt.Live).WithArguments(server.UID).Should(Equal([]int64{1}))
		process, _ := rt.Process(server.UID)
		Expect(slices.IndexFunc(process.Env, func(variable string) bool { return strings.HasPrefix(variable, "BERTH_") })).To(Equal(-1), "%v", process.Env)
		waitForCondition(ctx, server, v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.ReasonNotReady)
		Expect(server.Status.Resume).To(BeNil())
	})
})
