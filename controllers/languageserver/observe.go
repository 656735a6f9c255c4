// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package languageserver

import (
	"cmp"
	"context"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/lsp"
)

// unheardRetry is how soon to check again for a missing report. A report also triggers a reconcile; this is the fallback.
const unheardRetry = time.Second

// shortestWait is the minimum wait until a server becomes idle. It keeps an almost expired wait from becoming 0, which would mean that no check is needed.
const shortestWait = 100 * time.Millisecond

// ObserveRunning implements process.Kind: it copies the report of the multiplexer on the running server to the status.
func (k *Kind) ObserveRunning(ctx context.Context, object process.Object, current facts.Incarnation, observed *lifecycle.Observed) (time.Duration, error) {
	server := languageServer(object)
	before := server.Status.DeepCopy()
	k.locate(server)
	if k.reporter(server) == nil {
		k.lookWithout(server, current, observed)
		return 0, nil
	}
	report, known := k.report(server)
	if !known {
		// The status of this incarnation stays as recorded, because the manager may have just started and not received a report yet.
		observed.NotReady = "The multiplexer has not reported yet."
		k.recordRestart(server)
		return unheardRetry, nil
	}
	if report.Incarnation != current.Number {
		notReady := false
		observed.Ready, observed.NotReady = &notReady, "The multiplexer has not reported on this incarnation yet."
		k.initializing(server, v1alpha1.ReasonInitializing, "The multiplexer has not reported on this incarnation yet.")
		k.recordRestart(server)
		settled := equality.Semantic.DeepEqual(before, &server.Status)
		return process.Soonest(unheardRetry, k.count(server, report, !settled)), nil
	}
	k.determineHealth(server, report, observed)
	k.describe(server, report)
	k.recordRestart(server)
	if observed.Ready != nil && *observed.Ready {
		k.served(server, servingSince(current, report, k.clock.Now()))
	}
	settled := equality.Semantic.DeepEqual(before, &server.Status)
	return process.Soonest(k.setFolders(ctx, server, report), k.count(server, report, !settled), k.untilIdle(server, report)), nil
}

// lookWithout handles a backend without a multiplexer: a running process counts as serving, and its use is unknown.
func (k *Kind) lookWithout(server *v1alpha1.LanguageServer, current facts.Incarnation, observed *lifecycle.Observed) {
	ready := true
	observed.Ready = &ready
	k.set(server, v1alpha1.ConditionInitialized, metav1.ConditionTrue, v1alpha1.ReasonInitialized, "")
	k.set(server, v1alpha1.ConditionIndexed, metav1.ConditionTrue, v1alpha1.ReasonSettled, indexingUnknown)
	k.set(server, v1alpha1.ConditionHealthy, metav1.ConditionTrue, v1alpha1.ReasonHealthy, "")
	k.set(server, v1alpha1.ConditionIdle, metav1.ConditionUnknown, v1alpha1.ReasonUnknown, noMultiplexer)
	k.recordRestart(server)
	k.served(server, cmp.Or(current.StartedAt, k.clock.Now()))
}

// noMultiplexer and indexingUnknown are the messages of conditions that Berth cannot determine without a multiplexer.
const (
	noMultiplexer   = "Cannot determine whether clients use the server, because this runtime has no multiplexer."
	indexingUnknown = "Berth does not wait for indexing, because this runtime has no multiplexer."
)

// determineHealth records in observed whether the server serves, and whether it must be restarted although it is running.
func (k *Kind) determineHealth(server *v1alpha1.LanguageServer, report lsp.Report, observed *lifecycle.Observed) {
	trouble := cmp.Or(report.Message, report.Unhealthy)
	ready := report.Initialized
	if !ready {
		observed.NotReady = "The language server has not answered the initialize request yet."
	}
	if report.Unhealthy != "" && report.Restart {
		ready = false
		observed.NotReady, observed.Unhealthy, observed.UnhealthyReason = trouble, trouble, report.Unhealthy
		m := k.memories.Keep(server.UID)
		m.enter(report.Incarnation)
		m.trouble = trouble
	}
	observed.Ready = &ready
}

// describe sets the conditions about the server itself, and the name and version that the server reports.
func (k *Kind) describe(server *v1alpha1.LanguageServer, report lsp.Report) {
	switch {
	case !report.Initialized:
		k.set(server, v1alpha1.ConditionInitialized, metav1.ConditionFalse, v1alpha1.ReasonInitializing, "The language server has not answered the initialize request yet.")
		k.set(server, v1alpha1.ConditionIndexed, metav1.ConditionFalse, v1alpha1.ReasonInitializing, "")
	case !report.Indexed:
		k.set(server, v1alpha1.ConditionInitialized, metav1.ConditionTrue, v1alpha1.ReasonInitialized, "")
		k.set(server, v1alpha1.ConditionIndexed, metav1.ConditionFalse, v1alpha1.ReasonIndexing, "The language server is indexing its workspace; answers may be incomplete.")
	default:
		k.set(server, v1alpha1.ConditionInitialized, metav1.ConditionTrue, v1alpha1.ReasonInitialized, "")
		k.set(server, v1alpha1.ConditionIndexed, metav1.ConditionTrue, cmp.Or(report.IndexedBy, v1alpha1.ReasonSettled), indexed(report))
	}
	if report.Unhealthy != "" {
		k.set(server, v1alpha1.ConditionHealthy, metav1.ConditionFalse, report.Unhealthy, cmp.Or(report.Message, "The language server is unhealthy."))
	} else {
		k.set(server, v1alpha1.ConditionHealthy, metav1.ConditionTrue, v1alpha1.ReasonHealthy, "")
	}
	if report.Initialized {
		server.Status.ServerInfo = serverInfo(report)
	}
}

// indexed returns the message of the condition Indexed while the condition is True.
func indexed(report lsp.Report) string {
	if report.IndexedBy == v1alpha1.ReasonProgressTimeout {
		return "Berth no longer waits for the language server to report that it has finished indexing; answers may be incomplete."
	}
	return "The language server has finished indexing its workspace."
}

func serverInfo(report lsp.Report) *v1alpha1.ServerInfo {
	if report.ServerName == "" && report.ServerVersion == "" {
		return nil
	}
	return &v1alpha1.ServerInfo{Name: shorten(report.ServerName), Version: shorten(report.ServerVersion)}
}

// ObserveStopped implements process.Kind: it records that no server is running. It still copies the counts, because clients can stay connected to the
// multiplexer. It clears what the exited server has used, and the counts if the multiplexer has exited too, as in a Pod.
func (k *Kind) ObserveStopped(ctx context.Context, object process.Object) time.Duration {
	server := languageServer(object)
	before := server.Status.DeepCopy()
	k.locate(server)
	for _, conditionType := range []string{v1alpha1.ConditionInitialized, v1alpha1.ConditionIndexed, v1alpha1.ConditionHealthy} {
		meta.RemoveStatusCondition(&server.Status.Conditions, conditionType)
	}
	k.recordRestart(server)
	server.Status.Memory = nil
	report, known := k.report(server)
	switch {
	case !wanted(server), k.reporter(server) == nil, server.Status.LastExit != nil && k.gone(ctx, server):
		k.take(server, lsp.Report{})
	case known:
		report.MemoryBytes = 0
		settled := equality.Semantic.DeepEqual(before, &server.Status)
		return k.count(server, report, !settled)
	}
	return 0
}

// initializing sets the conditions of a server that does not serve yet.
func (k *Kind) initializing(server *v1alpha1.LanguageServer, reason, message string) {
	k.set(server, v1alpha1.ConditionInitialized, metav1.ConditionFalse, reason, message)
	k.set(server, v1alpha1.ConditionIndexed, metav1.ConditionFalse, reason, "")
	k.set(server, v1alpha1.ConditionHealthy, metav1.ConditionUnknown, reason, "")
}

// locate sets status.endpoint while the object is available for use. Otherwise it clears the endpoint and releases the multiplexer.
func (k *Kind) locate(server *v1alpha1.LanguageServer) {
	reporter := k.reporter(server)
	switch {
	case !wanted(server):
		k.keep(server, false)
		server.Status.Endpoint = ""
	case reporter == nil:
	case inPod(server):
		server.Status.Endpoint = podEndpoint(server)
	default:
		if path := reporter.Endpoint(server.UID); path != "" {
			server.Status.Endpoint = "unix://" + path
		}
	}
}

// untilIdle returns the time until an unused server is put to sleep. It returns 0 if the server is in use, is already asleep, never sleeps, or has been unused
// for an unknown time.
func (k *Kind) untilIdle(server *v1alpha1.LanguageServer, report lsp.Report) time.Duration {
	if server.Spec.State != v1alpha1.StateOnDemand || report.Clients > 0 || report.IdleSince.IsZero() || lifecycle.Asleep(&server.Status.ProcessStatus) {
		return 0
	}
	return max(idleTimeout(server)-k.clock.Since(report.IdleSince), shortestWait)
}

func (k *Kind) set(server *v1alpha1.LanguageServer, conditionType string, status metav1.ConditionStatus, reason, message string) {
	process.SetCondition(server, k.clock.Now(), conditionType, status, reason, message)
}

func condition(server *v1alpha1.LanguageServer, conditionType string) *metav1.Condition {
	return meta.FindStatusCondition(server.Status.Conditions, conditionType)
}
