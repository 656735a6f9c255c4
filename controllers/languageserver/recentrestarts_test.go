// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package languageserver

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/lsp"
)

func TestRecentRestarts_MeasureRequestedRestart(t *testing.T) {
	s := newFixture(t)
	server := gopls()
	s.backend.report = servingReport(1)
	s.observe(server)
	s.Expect(server.Status.RecentRestarts).To(BeEmpty(), "the first start is not a restart")

	asked := s.clock.Now()
	server.Status.Stopping = &v1alpha1.StopRequest{
		Incarnation: 1, Reason: v1alpha1.ReasonRequested, KillTime: metav1.NewMicroTime(asked.Add(10 * time.Second)),
	}
	s.advance(300 * time.Millisecond)
	s.prepare(server)
	s.Expect(server.Status.RecentRestarts).To(BeEmpty())

	recordRestart(server, s.clock.Now(), v1alpha1.ReasonRequested, &v1alpha1.ProcessExit{Incarnation: 1, Reason: v1alpha1.ReasonStopped})
	s.kind.ObserveStopped(t.Context(), server)
	s.Expect(server.Status.RecentRestarts).To(HaveLen(1))
	s.Expect(server.Status.RecentRestarts[0].TookMilliseconds).To(BeNil(), "the restart is not complete yet")
	s.advance(200 * time.Millisecond)
	s.backend.report = servingReport(2)
	s.observe(server)
	s.Expect(server.Status.RecentRestarts).To(Equal([]v1alpha1.Restart{{
		Incarnation: 2, Time: metav1.NewMicroTime(asked), Reason: v1alpha1.ReasonRequested, TookMilliseconds: ptr.To[int64](500 + 1500),
	}}), "from the request until the server is ready")

	endRestart(server, s.clock.Now())
	before := server.DeepCopy()
	s.advance(time.Hour)
	s.observe(server)
	s.Expect(server).To(Equal(before))
}

func TestRecentRestarts_MeasureFromCrash(t *testing.T) {
	s := newFixture(t)
	server := gopls()
	ended := metav1.NewMicroTime(epoch.Add(-2 * time.Second))
	recordRestart(server, epoch, v1alpha1.ReasonCrashed, &v1alpha1.ProcessExit{
		Incarnation: 1, Reason: v1alpha1.ReasonFailed, Signal: "SIGKILL", FinishTime: &ended})
	s.backend.report = servingReport(2)
	s.observe(server)
	s.Expect(server.Status.RecentRestarts).To(Equal([]v1alpha1.Restart{{
		Incarnation: 2, Time: ended, Reason: v1alpha1.ReasonCrashed, TookMilliseconds: ptr.To[int64](3500), Message: "terminated by SIGKILL",
	}}), "measured by a manager that did not observe the crash")

	lost := gopls()
	recordRestart(lost, epoch, v1alpha1.ReasonLost, &v1alpha1.ProcessExit{
		Incarnation: 1, Reason: v1alpha1.ReasonLost, ExitCode: ptr.To[int32](0), FinishTime: &ended, Message: "its Pod was deleted"})
	s.observe(lost)
	s.Expect(lost.Status.RecentRestarts).To(ConsistOf(And(HaveField("Reason", v1alpha1.ReasonLost), HaveField("Message", "its Pod was deleted"))))
}

func TestRecentRestarts_RecordWhyServerWasUnhealthy(t *testing.T) {
	s := newFixture(t)
	server := gopls()
	s.backend.report = servingReport(1)
	s.backend.changeReport(func(r *lsp.Report) {
		r.Unhealthy, r.Message, r.Restart = lsp.ReasonMemoryLimit, "holds 3 GiB of 2 GiB", true
	})
	s.observe(server)
	server.Status.Stopping = &v1alpha1.StopRequest{Incarnation: 1, Reason: lsp.ReasonMemoryLimit, KillTime: metav1.NewMicroTime(epoch.Add(10 * time.Second))}
	s.observe(server)
	recordRestart(server, s.clock.Now(), v1alpha1.ReasonMemoryLimit, &v1alpha1.ProcessExit{Incarnation: 1, Reason: lsp.ReasonMemoryLimit})
	s.backend.report = servingReport(2)
	s.observe(server)
	s.Expect(server.Status.RecentRestarts).To(HaveLen(1))
	s.Expect(server.Status.RecentRestarts[0].Reason).To(Equal(v1alpha1.ReasonMemoryLimit))
	s.Expect(server.Status.RecentRestarts[0].Message).To(Equal("holds 3 GiB of 2 GiB"))
}

func TestRecentRestarts_OmitWake(t *testing.T) {
	s := newFixture(t)
	server := gopls(onDemand)
	server.Status.Incarnation = 2
	endRestart(server, epoch)
	s.backend.report = servingReport(2)
	s.observe(server)
	s.Expect(server.Status.RecentRestarts).To(BeEmpty())
}

func TestRecentRestarts_KeepLastTen(t *testing.T) {
	s := newFixture(t)
	server := gopls()
	for range 15 {
		recordRestart(server, s.clock.Now(), v1alpha1.ReasonCrashed, &v1alpha1.ProcessExit{
			Incarnation: server.Status.Incarnation, Reason: v1alpha1.ReasonFailed, ExitCode: ptr.To[int32](3)})
		s.backend.report = servingReport(server.Status.Incarnation)
		s.observe(server)
		endRestart(server, s.clock.Now())
	}
	s.Expect(server.Status.RecentRestarts).To(HaveLen(maxRestarts))
	s.Expect(server.Status.RecentRestarts[0].Incarnation).To(Equal(int64(7)))
	s.Expect(server.Status.RecentRestarts[9].Incarnation).To(Equal(int64(16)))
	s.Expect(server.Status.RecentRestarts[9].Message).To(Equal("exit code 3"))
}

func TestRecentRestarts_RecordEachFailedStart(t *testing.T) {
	s := newFixture(t)
	server := gopls()
	s.backend.report = servingReport(1)
	recordRestart(server, s.clock.Now(), v1alpha1.ReasonCrashed, &v1alpha1.ProcessExit{Incarnation: 1, Reason: v1alpha1.ReasonFailed})
	s.kind.ObserveStopped(t.Context(), server)
	s.advance(time.Second)
	recordRestart(server, s.clock.Now(), v1alpha1.ReasonCrashed, &v1alpha1.ProcessExit{Incarnation: 2, Reason: v1alpha1.ReasonFailed})
	s.backend.report = servingReport(3)
	s.observe(server)
	s.Expect(server.Status.RecentRestarts).To(HaveLen(2))
	s.Expect(server.Status.RecentRestarts[0].TookMilliseconds).To(BeNil(), "the server never became ready")
	s.Expect(server.Status.RecentRestarts[1].TookMilliseconds).NotTo(BeNil())
}
