// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package langserver

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lsp/transport"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/conformance"
)

func TestPods_RestartKeepsPodAndClients(t *testing.T) {
	f := newPodFixture(t)
	f.Expect(f.observe(uid)).To(BeZero())
	first := f.start(uid, 1)
	f.Expect(first).To(And(HaveField("PodName", "first-1"), HaveField("Address", Not(BeEmpty()))))
	f.awaitReady(uid, 1)
	client := f.connect(uid)
	before := client.hover()
	f.Expect(before).To(ContainElement("ASKED_FOR=this"))

	f.Expect(f.Stop(t.Context(), uid, 1)).To(Succeed())
	f.Expect(f.await(uid, 1, facts.Exited).Exit.Known).To(BeTrue())
	second := f.start(uid, 2)
	f.Expect(second.PodName).To(Equal("first-1"))
	f.Expect(client.hover()).NotTo(Equal(before), "a new server on the same connection")
	f.Expect(f.podNumber(uid)).To(Equal(int64(1)))
	f.Expect(f.Start(t.Context(), f.process(uid, 2))).To(Succeed())
	f.Expect(f.Start(t.Context(), f.process(uid, 1))).To(MatchError(runtime.ErrStale))
	f.Expect(f.Start(t.Context(), f.process(uid, 3))).To(MatchError(runtime.ErrOldAlive))
}

func TestPods_NewManagerFindsRunningServer(t *testing.T) {
	f := newPodFixture(t)
	f.start(uid, 3)
	f.awaitReady(uid, 3)
	running := f.observe(uid)
	f.Runtime.Close()
	f.startManager()
	f.Expect(f.observe(uid)).To(Equal(running))
	report, known := f.Report(uid)
	f.Expect(known).To(BeTrue())
	f.Expect(report.Initialized).To(BeTrue())
	f.Expect(f.Start(t.Context(), f.process(uid, 2))).To(MatchError(runtime.ErrStale))

	f.Expect(f.Stop(t.Context(), uid, 3)).To(Succeed())
	f.await(uid, 3, facts.Exited)
	f.start(uid, 4) // in the Pod of the previous incarnation
	f.Runtime.Close()
	conformance.Signal(f.WithT, f.multiplexer(uid), unix.SIGSTOP)
	f.startManager()
	found := f.observe(uid)
	f.Expect(found).To(And(HaveField("Number", int64(4)), HaveField("Phase", facts.Unknown)), "the number is recorded, and no second server may start")
	conformance.Signal(f.WithT, f.multiplexer(uid), unix.SIGCONT)
	f.await(uid, 4, facts.Running)
}

func TestPods_KillWorksOnUnreachableServer(t *testing.T) {
	f := newPodFixture(t)
	f.start(uid, 1)
	f.awaitReady(uid, 1)
	f.Runtime.Close()
	conformance.Signal(f.WithT, f.multiplexer(uid), unix.SIGSTOP)
	f.startManager()
	f.Expect(f.observe(uid)).To(And(HaveField("Phase", facts.Unknown), HaveField("Killable", true), HaveField("Message", ContainSubstring("Pod first-1"))))
	f.Expect(f.Stop(t.Context(), uid, 1)).NotTo(Succeed())
	f.Expect(f.Kill(t.Context(), uid, 1)).To(Succeed())
	f.Expect(f.await(uid, 1, facts.Exited).Exit.Known).To(BeFalse())
	f.start(uid, 2)
}

func TestPods_StartContinuesAfterLostResponse(t *testing.T) {
	f := newPodFixture(t)
	f.pods.loseResponses = true
	f.Expect(f.Start(t.Context(), f.process(uid, 1))).To(MatchError(ContainSubstring("the answer was lost")))
	f.pods.loseResponses = false
	f.Eventually(func() facts.Incarnation { return f.observe(uid) }).WithTimeout(patience).WithPolling(often).
		Should(BeZero(), "the multiplexer responds and has no server")
	f.start(uid, 1)
	f.Expect(f.podNumber(uid)).To(Equal(int64(1)))
	f.awaitReady(uid, 1)
}

func TestPods_NamespaceIsPassedOn(t *testing.T) {
	f := newPodFixture(t)
	f.SetNamespace(uid, "team")
	f.Expect(f.pods.namespaces).To(Equal(map[types.UID]string{uid: "team"}))
}

// The environment of a server is sent over a connection, so no connection is made to a Pod that only claims to belong to the object.
func TestPods_ConnectsOnlyToPodOfObject(t *testing.T) {
	f := newPodFixture(t)
	f.start(uid, 1)
	f.awaitReady(uid, 1)
	f.Runtime.Close()
	for name, test := range map[string]struct {
		change func(made *corev1.Pod)
		home   string
		want   string
	}{
		"in another namespace":          {func(made *corev1.Pod) { made.Namespace = "intruder" }, testNamespace, "is not in namespace team"},
		"before the namespace is known": {func(*corev1.Pod) {}, "", "the namespace of the object is not known"},
		"with another name":             {func(made *corev1.Pod) { made.Name = "first-1-copy" }, testNamespace, "was replaced by Pod team/first-1-copy"},
		"without a controller":          {func(made *corev1.Pod) { made.OwnerReferences = nil }, testNamespace, "is not controlled by the object"},
		"with another controller":       {func(made *corev1.Pod) { made.OwnerReferences[0].UID = "other" }, testNamespace, "is not controlled by the object"},
	} {
		t.Run(name, func(t *testing.T) {
			f.startManager()
			defer f.Runtime.Close()
			f.SetNamespace(uid, test.home)
			f.pods.mu.Lock()
			made := f.pods.made["first-1"]
			forged := made.DeepCopy()
			test.change(forged)
			f.pods.made["first-1"] = forged
			f.pods.mu.Unlock()
			_, err := f.site.dial(t.Context(), uid)
			f.pods.mu.Lock()
			f.pods.made["first-1"] = made
			f.pods.mu.Unlock()
			NewWithT(t).Expect(err).To(MatchError(ContainSubstring(test.want)))
		})
	}
	f.startManager()
	f.Expect(f.observe(uid)).To(HaveField("Phase", facts.Running))
	f.Eventually(func() bool {
		_, known := f.Report(uid)
		return known
	}).WithTimeout(patience).WithPolling(often).Should(BeTrue())
}

func TestPods_DeletedPodReportsLostExit(t *testing.T) {
	f := newPodFixture(t)
	f.start(uid, 1)
	f.awaitReady(uid, 1)
	f.Expect(f.Gone(t.Context(), uid)).To(BeFalse())
	f.Expect(f.machine.Stop(t.Context(), uid, f.podNumber(uid))).To(Succeed(), "as a node stops it")
	end := f.await(uid, 1, facts.Exited).Exit
	f.Expect(end.Known).To(BeTrue(), "the multiplexer has stopped the server and reported its exit")
	f.Expect(end.Lost).To(BeTrue(), "Berth did not request the stop")
	f.Eventually(func() bool { return f.Gone(t.Context(), uid) }).WithTimeout(patience).WithPolling(often).Should(BeTrue())

	f.Runtime.Close()
	f.startManager()                    // a new manager has only the report of the node
	end.Message = "the Pod was deleted" // the node has reported the reason by now
	f.Expect(f.observe(uid).Exit).To(Equal(end))
	f.Expect(f.ReleaseExited(t.Context(), uid, 1)).To(Succeed())
	f.Expect(f.pods.settled).To(Equal([]int64{1}))

	f.start(uid, 2)
	f.Expect(f.podNumber(uid)).To(Equal(int64(2)))
	f.Expect(f.ReleaseExited(t.Context(), uid, 1)).To(Succeed())
	f.Expect(f.pods.settled).To(HaveLen(1), "the second Pod is still running")
	conformance.Signal(f.WithT, f.multiplexer(uid), unix.SIGKILL)
	f.Expect(f.await(uid, 2, facts.Exited).Exit).To(And(HaveField("Known", false), HaveField("Message", ContainSubstring("was terminated by SIGKILL"))))
}

func TestPods_ChangedSpecReplacesPod(t *testing.T) {
	f := newPodFixture(t)
	f.start(uid, 1)
	f.awaitReady(uid, 1)
	f.Expect(f.Start(t.Context(), f.processWithImage("gopls:2", uid, 1))).To(Succeed(), "the running server is not changed")
	f.Expect(f.Stop(t.Context(), uid, 1)).To(Succeed())
	f.await(uid, 1, facts.Exited)
	f.Expect(f.Start(t.Context(), f.processWithImage("gopls:2", uid, 2))).To(MatchError(runtime.ErrOldAlive))
	f.Eventually(func() error { return f.Start(context.Background(), f.processWithImage("gopls:2", uid, 2)) }).
		WithTimeout(patience).WithPolling(often).Should(Succeed())
	f.await(uid, 2, facts.Running)
	f.Expect(f.podNumber(uid)).To(Equal(int64(2)))
	f.awaitReady(uid, 2)
	f.Expect(f.Stop(t.Context(), uid, 2)).To(Succeed())
	f.await(uid, 2, facts.Exited)
	f.Expect(f.Start(t.Context(), f.processWithImage("gopls:2", uid, 3))).To(Succeed(), "the Pod already has the new spec")
	f.await(uid, 3, facts.Running)
	f.Expect(f.podNumber(uid)).To(Equal(int64(2)))
}

func TestPods_PendingPodIsStarting(t *testing.T) {
	f := newPodFixture(t)
	f.pods.waiting[uid] = "no node has room"
	f.Expect(f.Start(t.Context(), f.process(uid, 1))).To(Succeed())
	f.Expect(f.observe(uid)).To(And(HaveField("Number", int64(1)), HaveField("Phase", facts.Starting), HaveField("Message", "no node has room")))
	f.Runtime.Close()
	f.startManager()
	f.Expect(f.observe(uid)).To(And(HaveField("Number", int64(1)), HaveField("Phase", facts.Starting)))
	f.Expect(f.Stop(t.Context(), uid, 1)).To(Succeed(), "the Pod itself is stopped")
	f.await(uid, 1, facts.Exited)

	f.Expect(f.Start(t.Context(), f.process(uid, 2))).To(Succeed())
	f.Expect(f.Start(t.Context(), f.processWithImage("gopls:2", uid, 3))).To(MatchError(runtime.ErrOldAlive))
	f.await(uid, 2, facts.Exited)
	f.pods.mu.Lock()
	delete(f.pods.waiting, uid)
	f.pods.mu.Unlock()
	f.Expect(f.Start(t.Context(), f.processWithImage("gopls:2", uid, 3))).To(Succeed())
	f.await(uid, 3, facts.Running)
}

func TestPods_StoppedObjectDeletesPod(t *testing.T) {
	f := newPodFixture(t)
	f.Keep(uid, false) // no multiplexer exists yet
	f.start(uid, 1)
	f.awaitReady(uid, 1)
	f.Keep(uid, false)
	f.Expect(f.Stop(t.Context(), uid, 1)).To(Succeed())
	f.await(uid, 1, facts.Exited)
	f.Expect(f.Gone(t.Context(), uid)).To(BeTrue(), "the exit is not reported before the Pod has ended")
	f.Expect(f.Forget(t.Context(), uid)).To(Succeed())
	f.Expect(f.observe(uid)).To(BeZero())
}

func TestPods_SecretIsRecreatedButNotTakenOver(t *testing.T) {
	f := newPodFixture(t)
	f.start(uid, 1)
	f.awaitReady(uid, 1)
	old := f.secretData(uid)
	secrets := f.client.CoreV1().Secrets("team")
	f.Expect(secrets.Delete(t.Context(), "lsp-first", metav1.DeleteOptions{})).To(Succeed())
	conformance.Signal(f.WithT, f.multiplexer(uid), unix.SIGKILL)
	f.await(uid, 1, facts.Exited)
	f.start(uid, 2)
	f.awaitReady(uid, 2)
	f.Expect(f.secretData(uid)).NotTo(Equal(old))
	f.Expect(f.connect(uid).hover()).NotTo(BeEmpty())

	secret, err := secrets.Get(t.Context(), "lsp-first", metav1.GetOptions{})
	f.Expect(err).NotTo(HaveOccurred())
	secret.Name, secret.ResourceVersion = "lsp-other", ""
	_, err = secrets.Create(t.Context(), secret, metav1.CreateOptions{})
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(f.Start(t.Context(), f.process("other", 1))).To(MatchError(ContainSubstring("Secret team/lsp-other already exists and does not belong to this object")))
	f.Expect(secret.Data).To(HaveKey(transport.ManagerToken))
	f.image = "none"
	f.Expect(f.Start(t.Context(), f.process("third", 1))).To(MatchError(ContainSubstring("no image is known")))
}

// BenchmarkRestart measures the time from a stop until an editor receives an answer of the next incarnation, on a host and in a Pod, without an API server.
func BenchmarkRestart(b *testing.B) {
	type backend interface {
		start(uid types.UID, incarnation int64, args ...string) facts.Incarnation
		awaitReady(uid types.UID, incarnation int64)
		connect(uid types.UID) *editor
		Stop(ctx context.Context, uid types.UID, incarnation int64) error
		await(uid types.UID, incarnation int64, phase facts.Phase) facts.Incarnation
	}
	measure := func(b *testing.B, f backend) {
		f.start(uid, 1)
		f.awaitReady(uid, 1)
		client, n := f.connect(uid), int64(1)
		for b.Loop() {
			if err := f.Stop(b.Context(), uid, n); err != nil {
				b.Fatal(err)
			}
			f.await(uid, n, facts.Exited)
			n++
			f.start(uid, n)
			client.hover()
		}
	}
	b.Run("on a host", func(b *testing.B) { measure(b, newFixture(b)) })
	b.Run("in a Pod", func(b *testing.B) { measure(b, newPodFixture(b)) })
}
