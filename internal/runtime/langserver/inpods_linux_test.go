// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package langserver

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lsp/transport"
	"github.com/berth-dev/berth/internal/runtime"
)

func TestARestartKeepsThePodAndItsClients(t *testing.T) {
	b := newPodBench(t)
	b.Expect(b.observe(uid)).To(BeZero())
	first := b.start(uid, 1)
	b.Expect(first).To(And(HaveField("PodName", "first-1"), HaveField("Address", Not(BeEmpty()))))
	b.ready(uid, 1)
	client := b.connect(uid)
	before := client.hover()
	b.Expect(before).To(ContainElement("ASKED_FOR=this"))

	b.Expect(b.Stop(t.Context(), uid, 1)).To(Succeed())
	b.Expect(b.await(uid, 1, facts.Exited).Exit.Known).To(BeTrue())
	second := b.start(uid, 2)
	b.Expect(second.PodName).To(Equal("first-1"))
	b.Expect(client.hover()).NotTo(Equal(before), "a new server on the same connection")
	b.Expect(b.podNumber(uid)).To(Equal(int64(1)))
	b.Expect(b.Start(t.Context(), b.process(uid, 2))).To(Succeed())
	b.Expect(b.Start(t.Context(), b.process(uid, 1))).To(MatchError(runtime.ErrStale))
	b.Expect(b.Start(t.Context(), b.process(uid, 3))).To(MatchError(runtime.ErrOldAlive))
}

func TestAnotherManagerKnowsAtOnce(t *testing.T) {
	b := newPodBench(t)
	b.start(uid, 3)
	b.ready(uid, 3)
	running := b.observe(uid)
	b.Runtime.Close()
	b.manage()
	b.Expect(b.observe(uid)).To(Equal(running))
	report, known := b.Report(uid)
	b.Expect(known).To(BeTrue())
	b.Expect(report.Initialized).To(BeTrue())
	b.Expect(b.Start(t.Context(), b.process(uid, 2))).To(MatchError(runtime.ErrStale))

	b.Expect(b.Stop(t.Context(), uid, 3)).To(Succeed())
	b.await(uid, 3, facts.Exited)
	b.start(uid, 4) // in the Pod of the previous incarnation
	b.Runtime.Close()
	b.signal(b.multiplexer(uid), unix.SIGSTOP)
	b.manage()
	found := b.observe(uid)
	b.Expect(found).To(And(HaveField("Number", int64(4)), HaveField("Phase", facts.Unknown)), "the number is recorded, and no second server may start")
	b.signal(b.multiplexer(uid), unix.SIGCONT)
	b.await(uid, 4, facts.Running)
}

func TestAServerThatCannotBeReachedCanBeEnded(t *testing.T) {
	b := newPodBench(t)
	b.start(uid, 1)
	b.ready(uid, 1)
	b.Runtime.Close()
	b.signal(b.multiplexer(uid), unix.SIGSTOP)
	b.manage()
	b.Expect(b.observe(uid)).To(And(HaveField("Phase", facts.Unknown), HaveField("Killable", true), HaveField("Message", ContainSubstring("Pod first-1"))))
	b.Expect(b.Stop(t.Context(), uid, 1)).NotTo(Succeed())
	b.Expect(b.Kill(t.Context(), uid, 1)).To(Succeed())
	b.Expect(b.await(uid, 1, facts.Exited).Exit.Known).To(BeFalse())
	b.start(uid, 2)
}

func TestAPodWhoseMakingWasNotAnswered(t *testing.T) {
	b := newPodBench(t)
	b.pods.deaf = true
	b.Expect(b.Start(t.Context(), b.process(uid, 1))).To(MatchError(ContainSubstring("the answer was lost")))
	b.pods.deaf = false
	b.Eventually(func() facts.Incarnation { return b.observe(uid) }).WithTimeout(patience).WithPolling(often).
		Should(BeZero(), "the multiplexer responds and has no server")
	b.start(uid, 1)
	b.Expect(b.podNumber(uid)).To(Equal(int64(1)))
	b.ready(uid, 1)
}

func TestItsPodsAreToldTheNamespace(t *testing.T) {
	b := newPodBench(t)
	b.Belongs(uid, "team")
	b.Expect(b.pods.homes).To(Equal(map[types.UID]string{uid: "team"}))
}

func TestAPodThatIsTakenAway(t *testing.T) {
	b := newPodBench(t)
	b.start(uid, 1)
	b.ready(uid, 1)
	b.Expect(b.Gone(t.Context(), uid)).To(BeFalse())
	b.Expect(b.machine.Stop(t.Context(), uid, b.podNumber(uid))).To(Succeed(), "as a node stops it")
	end := b.await(uid, 1, facts.Exited).Exit
	b.Expect(end.Known).To(BeTrue(), "the multiplexer has stopped the server and reported its exit")
	b.Expect(end.Lost).To(BeTrue(), "Berth did not request the stop")
	b.Eventually(func() bool { return b.Gone(t.Context(), uid) }).WithTimeout(patience).WithPolling(often).Should(BeTrue())

	b.Runtime.Close()
	b.manage()                          // a new manager has only the report of the node
	end.Message = "the Pod was deleted" // the node has reported the reason by now
	b.Expect(b.observe(uid).Exit).To(Equal(end))
	b.Expect(b.Settle(t.Context(), uid, 1)).To(Succeed())
	b.Expect(b.pods.settled).To(Equal([]int64{1}))

	b.start(uid, 2)
	b.Expect(b.podNumber(uid)).To(Equal(int64(2)))
	b.Expect(b.Settle(t.Context(), uid, 1)).To(Succeed())
	b.Expect(b.pods.settled).To(HaveLen(1), "the second Pod is still running")
	b.signal(b.multiplexer(uid), unix.SIGKILL)
	b.Expect(b.await(uid, 2, facts.Exited).Exit).To(And(HaveField("Known", false), HaveField("Message", ContainSubstring("was terminated by SIGKILL"))))
}

func TestAnotherSpecOfThePodMakesAnother(t *testing.T) {
	b := newPodBench(t)
	b.start(uid, 1)
	b.ready(uid, 1)
	b.Expect(b.Start(t.Context(), b.ofImage("gopls:2", uid, 1))).To(Succeed(), "the running server is not changed")
	b.Expect(b.Stop(t.Context(), uid, 1)).To(Succeed())
	b.await(uid, 1, facts.Exited)
	b.Expect(b.Start(t.Context(), b.ofImage("gopls:2", uid, 2))).To(MatchError(runtime.ErrOldAlive))
	b.Eventually(func() error { return b.Start(context.Background(), b.ofImage("gopls:2", uid, 2)) }).
		WithTimeout(patience).WithPolling(often).Should(Succeed())
	b.await(uid, 2, facts.Running)
	b.Expect(b.podNumber(uid)).To(Equal(int64(2)))
	b.ready(uid, 2)
	b.Expect(b.Stop(t.Context(), uid, 2)).To(Succeed())
	b.await(uid, 2, facts.Exited)
	b.Expect(b.Start(t.Context(), b.ofImage("gopls:2", uid, 3))).To(Succeed(), "the Pod already has the new spec")
	b.await(uid, 3, facts.Running)
	b.Expect(b.podNumber(uid)).To(Equal(int64(2)))
}

func TestAPodThatWaits(t *testing.T) {
	b := newPodBench(t)
	b.pods.waiting[uid] = "no node has room"
	b.Expect(b.Start(t.Context(), b.process(uid, 1))).To(Succeed())
	b.Expect(b.observe(uid)).To(And(HaveField("Number", int64(1)), HaveField("Phase", facts.Starting), HaveField("Message", "no node has room")))
	b.Runtime.Close()
	b.manage()
	b.Expect(b.observe(uid)).To(And(HaveField("Number", int64(1)), HaveField("Phase", facts.Starting)))
	b.Expect(b.Stop(t.Context(), uid, 1)).To(Succeed(), "the Pod itself is stopped")
	b.await(uid, 1, facts.Exited)

	b.Expect(b.Start(t.Context(), b.process(uid, 2))).To(Succeed())
	b.Expect(b.Start(t.Context(), b.ofImage("gopls:2", uid, 3))).To(MatchError(runtime.ErrOldAlive))
	b.await(uid, 2, facts.Exited)
	b.pods.mu.Lock()
	delete(b.pods.waiting, uid)
	b.pods.mu.Unlock()
	b.Expect(b.Start(t.Context(), b.ofImage("gopls:2", uid, 3))).To(Succeed())
	b.await(uid, 3, facts.Running)
}

func TestWhoIsNotWantedAnyMoreGoes(t *testing.T) {
	b := newPodBench(t)
	b.Keep(uid, false) // no multiplexer exists yet
	b.start(uid, 1)
	b.ready(uid, 1)
	b.Keep(uid, false)
	b.Expect(b.Stop(t.Context(), uid, 1)).To(Succeed())
	b.await(uid, 1, facts.Exited)
	b.Expect(b.Gone(t.Context(), uid)).To(BeTrue(), "the exit is not reported before the Pod has ended")
	b.Expect(b.Forget(t.Context(), uid)).To(Succeed())
	b.Expect(b.observe(uid)).To(BeZero())
}

func TestTheSecretIsMadeAnewAndNotTakenFromOthers(t *testing.T) {
	b := newPodBench(t)
	b.start(uid, 1)
	b.ready(uid, 1)
	old := b.secret(uid)
	secrets := b.client.CoreV1().Secrets("team")
	b.Expect(secrets.Delete(t.Context(), "lsp-first", metav1.DeleteOptions{})).To(Succeed())
	b.signal(b.multiplexer(uid), unix.SIGKILL)
	b.await(uid, 1, facts.Exited)
	b.start(uid, 2)
	b.ready(uid, 2)
	b.Expect(b.secret(uid)).NotTo(Equal(old))
	b.Expect(b.connect(uid).hover()).NotTo(BeEmpty())

	secret, err := secrets.Get(t.Context(), "lsp-first", metav1.GetOptions{})
	b.Expect(err).NotTo(HaveOccurred())
	secret.Name, secret.ResourceVersion = "lsp-other", ""
	_, err = secrets.Create(t.Context(), secret, metav1.CreateOptions{})
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(b.Start(t.Context(), b.process("other", 1))).To(MatchError(ContainSubstring("Secret team/lsp-other already exists and does not belong to this object")))
	b.Expect(secret.Data).To(HaveKey(transport.ManagerToken))
	b.image = "none"
	b.Expect(b.Start(t.Context(), b.process("third", 1))).To(MatchError(ContainSubstring("no image is known")))
}
