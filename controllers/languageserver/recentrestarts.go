// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package languageserver

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/conditions"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lsp"
)

// defaultGrace is the default of gracePeriodSeconds in the API, for objects that were stored without a value.
const defaultGrace = 10

// maxRestarts is the maximum number of restarts in the status.
const maxRestarts = 10

// maxRestartMessage is the maximum length of the details of a restart in bytes. It is well below the maximum length of the field.
const maxRestartMessage = 1000

// enter makes m describe the given incarnation. It drops the data of any other incarnation.
func (m *objectCache) enter(incarnation int64) {
	if m.incarnation != incarnation {
		m.incarnation, m.asked, m.trouble, m.startFolders = incarnation, time.Time{}, "", nil
	}
}

// noteAsked keeps in memory when the stop of the current incarnation was requested, which is when users begin to wait. The status no longer contains the
// request when the next incarnation starts.
func (k *Kind) noteAsked(server *v1alpha1.LanguageServer) {
	stopping := server.Status.Stopping
	if stopping == nil || stopping.Incarnation != server.Status.Incarnation {
		return
	}
	m := k.memories.Keep(server.UID)
	m.enter(stopping.Incarnation)
	grace := time.Duration(ptr.Deref(server.Spec.Process.Stop.GracePeriodSeconds, defaultGrace)) * time.Second
	asked, now := stopping.KillTime.Add(-grace), k.clock.Now()
	if asked.After(now) {
		asked = now // the grace period was longer at the time of the request
	}
	if m.asked.IsZero() {
		m.asked = asked
	}
}

// recordRestart adds the current restart to status.recentRestarts, once the new incarnation is in the status.
func (k *Kind) recordRestart(server *v1alpha1.LanguageServer) {
	status := &server.Status
	restarting := condition(server, v1alpha1.ConditionRestarting)
	ended := status.LastExit != nil && status.LastExit.Incarnation >= status.Incarnation
	ending := status.Stopping != nil && status.Stopping.Incarnation == status.Incarnation
	if status.Incarnation < 2 || ended || ending || restarting == nil || restarting.Status != metav1.ConditionTrue {
		return
	}
	if last := len(status.RecentRestarts) - 1; last >= 0 && status.RecentRestarts[last].Incarnation >= status.Incarnation {
		return
	}
	restart := v1alpha1.Restart{Incarnation: status.Incarnation, Reason: restarting.Reason}
	restart.Time = metav1.NewMicroTime(k.lostAt(server, restarting).Truncate(time.Microsecond))
	restart.Message = k.why(server, restart.Reason)
	status.RecentRestarts = append(status.RecentRestarts, restart)
	if surplus := len(status.RecentRestarts) - maxRestarts; surplus > 0 {
		status.RecentRestarts = append([]v1alpha1.Restart(nil), status.RecentRestarts[surplus:]...)
	}
}

// lostAt returns the time from which users have been waiting: when the stop was requested, or when the process exited by itself.
func (k *Kind) lostAt(server *v1alpha1.LanguageServer, restarting *metav1.Condition) time.Time {
	m, end := k.memories.Keep(server.UID), server.Status.LastExit
	switch {
	case m.incarnation == server.Status.Incarnation-1 && !m.asked.IsZero():
		return m.asked
	case end != nil && end.Incarnation == server.Status.Incarnation-1 && end.FinishTime != nil:
		return end.FinishTime.Time
	default:
		return restarting.LastTransitionTime.Time
	}
}

// why returns details of a restart beyond its reason: what was wrong with the server, or how the server exited by itself.
func (k *Kind) why(server *v1alpha1.LanguageServer, reason string) string {
	m, end := k.memories.Keep(server.UID), server.Status.LastExit
	previous := server.Status.Incarnation - 1
	switch {
	case m.incarnation == previous && m.trouble != "":
		return conditions.Truncate(m.trouble, maxRestartMessage)
	case end != nil && end.Incarnation == previous && reason == v1alpha1.ReasonLost:
		return conditions.Truncate(end.Message, maxRestartMessage)
	case end == nil || end.Incarnation != previous || reason != v1alpha1.ReasonCrashed:
		return ""
	case end.Signal != "":
		return "terminated by " + end.Signal
	case end.ExitCode != nil:
		return fmt.Sprintf("exit code %d", *end.ExitCode)
	default:
		return end.Message
	}
}

// served records how long the restart to the current incarnation took; since is when that incarnation began to serve.
func (k *Kind) served(server *v1alpha1.LanguageServer, since time.Time) {
	restarts := server.Status.RecentRestarts
	last := len(restarts) - 1
	if last < 0 || restarts[last].Incarnation != server.Status.Incarnation || restarts[last].TookMilliseconds != nil ||
		!meta.IsStatusConditionTrue(server.Status.Conditions, v1alpha1.ConditionRestarting) {
		return
	}
	took := max(0, (k.clock.Since(restarts[last].Time.Time) - k.clock.Since(since)).Milliseconds())
	restarts[last].TookMilliseconds = &took
}

// servingSince returns when the server began to serve. It returns now if the time of the start or the duration of the startup is not known.
func servingSince(current facts.Incarnation, report lsp.Report, now time.Time) time.Time {
	if current.StartedAt.IsZero() || report.Counters.StartupNanos <= 0 {
		return now
	}
	return current.StartedAt.Add(time.Duration(report.Counters.StartupNanos))
}
