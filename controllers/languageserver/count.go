// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package languageserver

import (
	"math"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/lsp"
)

const (
	// countEvery is the minimum interval between two writes that change only counts.
	countEvery = 5 * time.Second
	// memoryStep is the precision of status.memory, in bytes. The memory of a busy server changes constantly.
	memoryStep = 16 << 20
)

// count copies the counts of a report to the status: immediately if the status is written anyway, otherwise at most every countEvery, because they change
// constantly while clients use the server. It returns when to check again, 0 for never.
func (k *Kind) count(server *v1alpha1.LanguageServer, report lsp.Report, anyway bool) time.Duration {
	m, now := k.memories.Keep(server.UID), k.clock.Now()
	retry := time.Duration(0)
	if !report.OldestRequest.IsZero() {
		retry = countEvery // the age of the request increases without a report
	}
	if idle := condition(server, v1alpha1.ConditionIdle); idle != nil && idle.ObservedGeneration != server.Generation {
		anyway = true // the new generation is written
	}
	before := server.Status.DeepCopy()
	k.take(server, report)
	if !anyway && equality.Semantic.DeepEqual(before, &server.Status) {
		return retry
	}
	if left := countEvery - k.clock.Since(m.counted); !anyway && left > 0 && left <= countEvery {
		server.Status = *before
		return process.Soonest(left, retry)
	}
	m.counted = now
	return retry
}

// take copies the counts of a report to the status.
func (k *Kind) take(server *v1alpha1.LanguageServer, report lsp.Report) {
	status := &server.Status
	status.Clients, status.OpenDocuments, status.HeldRequests = small(report.Clients), small(report.OpenDocuments), small(report.Held)
	// A request that is answered soon is irrelevant, and reporting it would cost one write per request.
	status.OldestRequestSeconds = 0
	if age := k.clock.Since(report.OldestRequest); !report.OldestRequest.IsZero() && age >= countEvery {
		status.OldestRequestSeconds = small(int(age / time.Second))
	}
	memory := steadyMemory(size(status.Memory), report.MemoryBytes)
	status.Memory = nil
	if memory > 0 {
		status.Memory = resource.NewQuantity(memory, resource.BinarySI)
	}
	if report.Clients > 0 {
		k.set(server, v1alpha1.ConditionIdle, metav1.ConditionFalse, v1alpha1.ReasonInUse, "")
		return
	}
	k.set(server, v1alpha1.ConditionIdle, metav1.ConditionTrue, v1alpha1.ReasonNoClients, "No client is connected.")
}

// steadyMemory returns the recorded value if it differs from the measured one by at most two steps or a tenth, whichever is more. Otherwise it returns the
// measured value, rounded to steps.
func steadyMemory(said, is int64) int64 {
	rounded := (is + memoryStep/2) / memoryStep * memoryStep
	if is > 0 {
		rounded = max(rounded, memoryStep)
	}
	difference := rounded - said
	if difference < 0 {
		difference = -difference
	}
	if said > 0 && rounded > 0 && difference <= max(2*memoryStep, said/10) {
		return said
	}
	return rounded
}

func small(n int) int32 { return int32(min(max(n, 0), math.MaxInt32)) }

// longestName is the maximum length of the name and version that a server reports, in bytes.
const longestName = 256

func shorten(text string) string { return strings.ToValidUTF8(text[:min(len(text), longestName)], "") }
