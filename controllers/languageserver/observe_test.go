// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package languageserver

import (
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/elapsed"
	"github.com/berth-dev/berth/internal/elapsed/elapsedtest"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/runtime"
)

func TestObserveStopped_PublishesEndpointBeforeFirstStart(t *testing.T) {
	s := newFixture(t)
	server := gopls()
	s.kind.ObserveStopped(t.Context(), server)
	s.Expect(s.conditionSummary(server, v1alpha1.ConditionInitialized)).To(BeEmpty())
	s.Expect(s.conditionSummary(server, v1alpha1.ConditionIndexed)).To(BeEmpty())
	s.Expect(s.conditionSummary(server, v1alpha1.ConditionHealthy)).To(BeEmpty())
	s.Expect(s.conditionSummary(server, v1alpha1.ConditionIdle)).To(BeEmpty())
	s.Expect(server.Status.Endpoint).To(Equal(socket), "clients wait for the server on this socket")
}

func TestConditions_FollowInitializationAndIndexing(t *testing.T) {
	s := newFixture(t)
	server := gopls()
	s.backend.report = &lsp.Report{Incarnation: 1, Phase: facts.Running}
	observed, _ := s.observe(server)
	s.Expect(observed.Ready).To(HaveValue(BeFalse()))
	s.Expect(observed.NotReady).To(ContainSubstring("has not answered the initialize request"))
	s.Expect(s.conditionSummary(server, v1alpha1.ConditionInitialized)).To(Equal("False Initializing"))

	s.backend.report = servingReport(1)
	s.backend.changeReport(func(r *lsp.Report) { r.Indexed, r.IndexedBy = false, "" })
	observed, _ = s.observe(server)
	s.Expect(observed.Ready).To(HaveValue(BeTrue()))
	s.Expect(s.conditionSummary(server, v1alpha1.ConditionInitialized)).To(BeEmpty())
	s.Expect(s.conditionSummary(server, v1alpha1.ConditionIndexed)).To(Equal("False Indexing"))
	s.Expect(s.conditionSummary(server, v1alpha1.ConditionHealthy)).To(BeEmpty())
	s.Expect(server.Status.ServerInfo).To(Equal(&v1alpha1.ServerInfo{Name: "gopls", Version: "v0.23.0"}))

	s.backend.changeReport(func(r *lsp.Report) { r.Indexed, r.IndexedBy = true, lsp.IndexedByProgressTimeout })
	s.observe(server)
	s.Expect(s.conditionSummary(server, v1alpha1.ConditionIndexed)).To(Equal("True ProgressTimeout"))
	s.Expect(condition(server, v1alpha1.ConditionIndexed).Message).To(HavePrefix("Berth no longer waits for the language server"))
}

func TestUnhealthy_IsReportedBeforeRestart(t *testing.T) {
	s := newFixture(t)
	server := gopls()
	s.backend.report = servingReport(1)
	s.backend.changeReport(func(r *lsp.Report) { r.Unhealthy, r.Message = lsp.ReasonHung, "owes three answers" })
	observed, _ := s.observe(server)
	s.Expect(observed.Ready).To(HaveValue(BeTrue()), "the condition is reported before the restart")
	s.Expect(observed.Unhealthy).To(BeEmpty())
	s.Expect(s.conditionSummary(server, v1alpha1.ConditionHealthy)).To(Equal("False Hung"))

	s.backend.changeReport(func(r *lsp.Report) { r.Restart = true })
	observed, _ = s.observe(server)
	s.Expect(observed.Ready).To(HaveValue(BeFalse()))
	s.Expect(observed.Unhealthy).To(Equal("owes three answers"))
	s.Expect(observed.UnhealthyReason).To(Equal(v1alpha1.ReasonHung))
	s.Expect(condition(server, v1alpha1.ConditionHealthy).Message).To(Equal("Owes three answers."))
}

func TestReasons_MatchMultiplexer(t *testing.T) {
	g := NewWithT(t)
	g.Expect(v1alpha1.ReasonHung).To(Equal(lsp.ReasonHung))
	g.Expect(v1alpha1.ReasonProtocolError).To(Equal(lsp.ReasonProtocolError))
	g.Expect(v1alpha1.ReasonMemoryLimit).To(Equal(lsp.ReasonMemoryLimit))
	g.Expect(v1alpha1.ReasonCanaryFailed).To(Equal(lsp.ReasonCanaryFailed))
	g.Expect(v1alpha1.ReasonFolderReplaced).To(Equal(lsp.ReasonFolderReplaced))
	g.Expect(v1alpha1.ReasonQuarantined).To(Equal(lsp.ReasonQuarantined))
	g.Expect(v1alpha1.ReasonCapabilityMismatch).To(Equal(lsp.ReasonCapabilityLost))
	g.Expect(v1alpha1.ReasonFilesUnseen).To(Equal(lsp.ReasonFilesUnseen))
	g.Expect(v1alpha1.ReasonSettled).To(Equal(lsp.IndexedBySettled))
	g.Expect(v1alpha1.ReasonProgressTimeout).To(Equal(lsp.IndexedByProgressTimeout))
}

func TestReport_OfOtherIncarnationIsIgnored(t *testing.T) {
	s := newFixture(t)
	server := gopls(func(server *v1alpha1.LanguageServer) { server.Status.Incarnation = 2 })
	s.backend.report = servingReport(1)
	observed, retry := s.observe(server)
	s.Expect(observed.Ready).To(HaveValue(BeFalse()))
	s.Expect(retry).To(Equal(unheardRetry))
	s.Expect(s.conditionSummary(server, v1alpha1.ConditionInitialized)).To(Equal("False Initializing"))
}

func TestNewManager_KeepsStatusWithoutReport(t *testing.T) {
	s := newFixture(t)
	server := gopls()
	s.backend.report = servingReport(1)
	s.observe(server)
	before := server.DeepCopy()
	s.restartManager()
	s.backend.report, s.backend.socket = nil, ""
	observed, retry := s.observe(server)
	s.Expect(observed.Ready).To(BeNil(), "the recorded readiness stays")
	s.Expect(retry).To(Equal(unheardRetry))
	s.Expect(server).To(Equal(before))
}

func TestStatus_DoesNotChangeAtRest(t *testing.T) {
	s := newFixture(t)
	server := gopls()
	s.backend.report = servingReport(1)
	s.observe(server)
	before := server.DeepCopy()
	for range 20 {
		s.advance(time.Minute)
		_, retry := s.observe(server)
		s.Expect(server).To(Equal(before))
		s.Expect(retry).To(BeZero())
	}
	s.restartManager()
	s.observe(server)
	s.Expect(server).To(Equal(before))
}

func TestCounts_AreWrittenAtIntervals(t *testing.T) {
	s := newFixture(t)
	server := gopls()
	s.backend.report = servingReport(1)
	s.observe(server)
	s.Expect(server.Status.Clients).To(Equal(int32(2)))
	s.Expect(server.Status.OpenDocuments).To(Equal(int32(3)))
	changes := 0
	for i := range 100 { // ten seconds with ten requests per second
		before := server.DeepCopy()
		s.advance(100 * time.Millisecond)
		s.backend.changeReport(func(r *lsp.Report) {
			r.InFlight, r.OldestRequest, r.OpenDocuments = i%3, s.clock.Now(), 3+i
		})
		_, retry := s.observe(server)
		s.Expect(retry).To(And(BeNumerically(">", 0), BeNumerically("<=", countEvery)), "requeued while there are unwritten counts")
		if !equality.Semantic.DeepEqual(before, server) {
			changes++
		}
	}
	s.Expect(changes).To(BeNumerically("<=", 2), "writes in ten seconds")
	s.advance(countEvery)
	s.observe(server)
	s.Expect(server.Status.OpenDocuments).To(Equal(int32(102)))
}

func TestCounts_AreWrittenWithOtherChanges(t *testing.T) {
	s := newFixture(t)
	server := gopls()
	s.backend.report = servingReport(1)
	s.observe(server)
	s.backend.changeReport(func(r *lsp.Report) { r.Clients = 7 })
	s.observe(server)
	s.Expect(server.Status.Clients).To(Equal(int32(2)))
	s.backend.changeReport(func(r *lsp.Report) { r.Unhealthy = lsp.ReasonQuarantined })
	s.observe(server)
	s.Expect(server.Status.Clients).To(Equal(int32(7)))
}

func TestOldestRequest_AgeIsReported(t *testing.T) {
	s := newFixture(t)
	server := gopls()
	s.backend.report = servingReport(1)
	s.backend.changeReport(func(r *lsp.Report) { r.OldestRequest = s.clock.Now() })
	_, retry := s.observe(server)
	s.Expect(retry).To(Equal(countEvery))
	s.Expect(server.Status.OldestRequestSeconds).To(BeZero())
	s.advance(7 * time.Second)
	s.observe(server)
	s.Expect(server.Status.OldestRequestSeconds).To(Equal(int32(7)))
}

func TestMemory_IsReportedInSteps(t *testing.T) {
	g := NewWithT(t)
	const mega = 1 << 20
	g.Expect(steadyMemory(0, 1)).To(Equal(int64(16 * mega)))
	g.Expect(steadyMemory(0, 100*mega)).To(Equal(int64(96 * mega)))
	g.Expect(steadyMemory(96*mega, 120*mega)).To(Equal(int64(96*mega)), "a small change is noise")
	g.Expect(steadyMemory(96*mega, 160*mega)).To(Equal(int64(160 * mega)))
	g.Expect(steadyMemory(1600*mega, 1500*mega)).To(Equal(int64(1600 * mega)))
	g.Expect(steadyMemory(1600*mega, 0)).To(BeZero())
}

func TestStoppedServer_ClearsStatusAndIsReleased(t *testing.T) {
	s := newFixture(t)
	server := gopls()
	s.backend.report = servingReport(1)
	s.observe(server)
	s.Expect(server.Status.Endpoint).To(Equal(socket))
	s.prepare(server)
	server.Spec.State = v1alpha1.StateStopped
	s.kind.ObserveStopped(t.Context(), server)
	s.Expect(server.Status.Endpoint).To(BeEmpty())
	s.Expect(server.Status.Clients).To(BeZero())
	s.Expect(server.Status.Memory).To(BeNil())
	s.Expect(s.conditionSummary(server, v1alpha1.ConditionIdle)).To(Equal("True NoClients"))
	s.Expect(s.backend.kept).To(HaveKeyWithValue(server.UID, false))
}

func TestDeletedServer_IsReleased(t *testing.T) {
	s := newFixture(t)
	server := gopls(func(server *v1alpha1.LanguageServer) { server.DeletionTimestamp = &metav1.Time{Time: epoch} })
	s.backend.report = servingReport(1)
	s.observe(server)
	s.Expect(s.backend.kept).To(HaveKeyWithValue(server.UID, false))
	s.kind.Forget(server.UID)
	s.Expect(s.kind.memories.Len()).To(BeZero())
}

func TestRestart_KeepsClientsAndEndpoint(t *testing.T) {
	s := newFixture(t)
	server := gopls()
	s.backend.report = servingReport(1)
	s.observe(server)
	s.backend.changeReport(func(r *lsp.Report) { r.Phase, r.Held = facts.Exited, 4 })
	s.kind.ObserveStopped(t.Context(), server)
	s.Expect(server.Status.Endpoint).To(Equal(socket))
	s.Expect(server.Status.Clients).To(Equal(int32(2)))
	s.Expect(server.Status.HeldRequests).To(Equal(int32(4)))
	s.Expect(server.Status.ServerInfo).NotTo(BeNil())
}

func TestBackendWithoutMultiplexer_IsReadyButNeverSleeps(t *testing.T) {
	s := newFixture(t)
	s.kind = New(s.store, s.store, runtime.NewRegistry(runtime.NoRuntime{}, logr.Discard()), s.clock)
	server := gopls(onDemand)
	s.prepare(server)
	observed, retry := s.observe(server)
	s.Expect(observed.Ready).To(HaveValue(BeTrue()))
	s.Expect(retry).To(BeZero())
	s.Expect(s.conditionSummary(server, v1alpha1.ConditionInitialized)).To(BeEmpty())
	s.Expect(s.conditionSummary(server, v1alpha1.ConditionIdle)).To(Equal("Unknown Unknown"))
	s.Expect(s.kind.Asleep(t.Context(), server, epoch)).To(BeFalse(), "without a multiplexer a client could not wake the server")
}

func TestServerName_IsTruncated(t *testing.T) {
	s := newFixture(t)
	server := gopls()
	s.backend.report = servingReport(1)
	s.backend.changeReport(func(r *lsp.Report) { r.ServerName = strings.Repeat("ä", 200) })
	s.observe(server)
	s.Expect(server.Status.ServerInfo.Name).To(Equal(strings.Repeat("ä", 128)))
}

func TestAsleep_FromIdleTimeoutUntilClientConnects(t *testing.T) {
	s := newFixture(t)
	server := gopls(onDemand)
	asleep := func() bool { return s.kind.Asleep(t.Context(), server, s.clock.Now()) }
	s.Expect(asleep()).To(BeFalse(), "a new server starts once, to prove that it can")
	s.backend.report = servingReport(1)
	s.Expect(asleep()).To(BeFalse())
	s.backend.changeReport(func(r *lsp.Report) { r.Clients, r.IdleSince = 0, s.clock.Now() })
	_, retry := s.observe(server)
	s.Expect(retry).To(Equal(time.Minute))
	s.advance(time.Minute - time.Second)
	s.Expect(asleep()).To(BeFalse())
	_, retry = s.observe(server)
	s.Expect(retry).To(Equal(time.Second))
	s.advance(time.Second)
	s.Expect(asleep()).To(BeTrue())
	s.Expect(s.backend.kept).To(HaveKeyWithValue(server.UID, true))

	server.Status.Stopping = &v1alpha1.StopRequest{Incarnation: 1, Reason: v1alpha1.ReasonIdle, KillTime: metav1.NewMicroTime(epoch.Add(time.Hour))}
	_, retry = s.observe(server)
	s.Expect(retry).To(BeZero(), "the exit is an event")
	server.Status.Stopping = nil
	process.SetCondition(server, epoch, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonIdle, "")
	s.restartManager()
	s.backend.report = nil
	s.Expect(asleep()).To(BeTrue(), "a new manager does not wake the server")
	s.backend.report = &lsp.Report{IdleSince: s.clock.Now()}
	s.Expect(asleep()).To(BeTrue(), "a new multiplexer does not wake the server")
	s.kind.ObserveStopped(t.Context(), server)
	s.Expect(server.Status.Endpoint).To(Equal(socket), "so that a client can connect")
	s.Expect(s.conditionSummary(server, v1alpha1.ConditionIdle)).To(Equal("True NoClients"))
	s.backend.changeReport(func(r *lsp.Report) { r.Clients, r.IdleSince = 1, time.Time{} })
	s.Expect(asleep()).To(BeFalse())
}

func TestAsleep_IsFalseUnlessOnDemand(t *testing.T) {
	s := newFixture(t)
	s.backend.report = &lsp.Report{IdleSince: epoch.Add(-24 * time.Hour)}
	s.Expect(s.kind.Asleep(t.Context(), gopls(), epoch)).To(BeFalse())
}

// A server is not put to sleep because the machine was suspended, or later because the clock was set back.
func TestIdleTimeout_DoesNotChangeWithClock(t *testing.T) {
	for _, step := range elapsedtest.Steps {
		s := newFixture(t)
		wall := elapsedtest.New(epoch)
		clock := elapsed.New(wall)
		s.kind = New(s.store, s.store, s.runtimes(), clock)
		server := gopls(onDemand)
		s.backend.report = servingReport(1)
		s.backend.changeReport(func(r *lsp.Report) { r.Clients, r.IdleSince = 0, clock.Now() })
		asleep := func() bool { return s.kind.Asleep(t.Context(), server, clock.Now()) }
		wall.Step(30 * time.Second)
		s.Expect(asleep()).To(BeFalse())
		wall.Set(step)
		wall.Step(30*time.Second - time.Millisecond)
		s.Expect(asleep()).To(BeFalse(), "step %s", step)
		s.Expect(s.kind.untilIdle(server, *s.backend.report)).To(Equal(shortestWait))
		wall.Step(time.Millisecond)
		s.Expect(asleep()).To(BeTrue(), "step %s", step)
	}
}
