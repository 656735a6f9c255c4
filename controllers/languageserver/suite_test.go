// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package languageserver

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/conditions/conditionstest"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/runtime"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var epoch = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

const (
	path   = "/run/berth/uid-go/lsp.sock"
	socket = "unix://" + path
)

// backend is a runtime that runs no programs. It implements only Reporter, which reports on the multiplexer.
type backend struct {
	runtime.NoRuntime
	report *lsp.Report
	kept   map[types.UID]bool
	socket string
	gone   bool
	// folders are those of the last call of SetFolders, which returns refusal.
	folders []string
	refusal error
}

func (b *backend) Report(types.UID) (lsp.Report, bool) {
	if b.report == nil {
		return lsp.Report{}, false
	}
	return *b.report, true
}
func (b *backend) Endpoint(types.UID) string     { return b.socket }
func (b *backend) Keep(uid types.UID, keep bool) { b.kept[uid] = keep }
func (b *backend) SetFolders(_ context.Context, _ types.UID, folders []string) error {
	b.folders = folders
	return b.refusal
}
func (b *backend) Gone(context.Context, types.UID) bool  { return b.gone }
func (b *backend) changeReport(change func(*lsp.Report)) { change(b.report) }

// fixture is the kind with a fake backend and clock. No reconcile loop runs: the tests themselves make the changes to the object that the loop would write.
type fixture struct {
	Gomega
	t       *testing.T
	kind    *Kind
	backend *backend
	clock   *clocktesting.FakePassiveClock
	store   client.WithWatch
}

func newFixture(t *testing.T, objects ...client.Object) *fixture {
	t.Helper()
	scheme := apiruntime.NewScheme()
	if err := errors.Join(v1alpha1.AddToScheme(scheme), corev1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	s := &fixture{
		Gomega: NewWithT(t), t: t,
		backend: &backend{socket: path, kept: map[types.UID]bool{}},
		clock:   clocktesting.NewFakePassiveClock(epoch),
		store:   fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build(),
	}
	s.kind = New(s.store, s.store, s.runtimes(), s.clock)
	return s
}

func (s *fixture) runtimes() *runtime.Registry {
	return runtime.NewRegistry(s.backend, logr.Discard(), runtime.Backend{Type: v1alpha1.RuntimePod, Runtime: s.backend})
}

func (s *fixture) advance(d time.Duration) { s.clock.SetTime(s.clock.Now().Add(d)) }

// restartManager discards the state in memory.
func (s *fixture) restartManager() {
	s.kind = New(s.store, s.store, s.runtimes(), s.clock)
}

// observe does what the reconcile loop does for a running incarnation.
func (s *fixture) observe(server *v1alpha1.LanguageServer) (lifecycle.Observed, time.Duration) {
	s.t.Helper()
	var observed lifecycle.Observed
	retry, err := s.kind.ObserveRunning(s.t.Context(), server, s.incarnation(server), &observed)
	s.Expect(err).NotTo(HaveOccurred())
	s.Expect(conditionstest.Faulty(server.Status.Conditions)).To(BeEmpty(), "%v", server.Status.Conditions)
	for _, condition := range server.Status.Conditions {
		s.Expect(condition.ObservedGeneration).To(Equal(server.Generation), condition.Type)
	}
	return observed, retry
}

func (s *fixture) incarnation(server *v1alpha1.LanguageServer) facts.Incarnation {
	return facts.Incarnation{UID: string(server.UID), Number: server.Status.Incarnation, Phase: facts.Running, StartedAt: s.clock.Now()}
}

func (s *fixture) conditionSummary(server *v1alpha1.LanguageServer, conditionType string) string {
	s.t.Helper()
	found := condition(server, conditionType)
	if found == nil {
		return "" // a condition with its default status is absent
	}
	return string(found.Status) + " " + found.Reason
}

// gopls is a language server whose first incarnation runs.
func gopls(change ...func(*v1alpha1.LanguageServer)) *v1alpha1.LanguageServer {
	server := &v1alpha1.LanguageServer{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "go", UID: "uid-go", Generation: 1},
		Spec: v1alpha1.LanguageServerSpec{
			ProcessSpec: v1alpha1.ProcessSpec{
				State:   v1alpha1.StateRunning,
				Process: v1alpha1.ProcessTemplate{Command: []string{"gopls"}, Stop: v1alpha1.StopPolicy{GracePeriodSeconds: ptr.To[int32](10)}},
			},
			Language: "go", Workspace: v1alpha1.Workspace{Folders: []string{"/src", "/lib"}},
		},
		Status: v1alpha1.LanguageServerStatus{ProcessStatus: v1alpha1.ProcessStatus{Incarnation: 1}},
	}
	for _, do := range change {
		do(server)
	}
	return server
}

func onDemand(server *v1alpha1.LanguageServer) {
	server.Spec.State = v1alpha1.StateOnDemand
	server.Spec.IdleTimeoutSeconds = ptr.To[int32](60)
}

// servingReport returns the report of a server with two clients.
func servingReport(incarnation int64) *lsp.Report {
	return &lsp.Report{
		Incarnation: incarnation, Phase: facts.Running, Initialized: true, Indexed: true, IndexedBy: "Settled",
		ServerName: "gopls", ServerVersion: "v0.23.0", Clients: 2, OpenDocuments: 3, MemoryBytes: 100 << 20,
		Counters: lsp.Counters{StartupNanos: int64(1500 * time.Millisecond)},
	}
}

// recordRestart records the start of a new incarnation as the state machine does.
func recordRestart(server *v1alpha1.LanguageServer, now time.Time, reason string, end *v1alpha1.ProcessExit) {
	server.Status.Incarnation++
	server.Status.Stopping = nil
	server.Status.LastExit = end
	process.SetCondition(server, now, v1alpha1.ConditionRestarting, metav1.ConditionTrue, reason, "Starting.")
}

func endRestart(server *v1alpha1.LanguageServer, now time.Time) {
	process.SetCondition(server, now, v1alpha1.ConditionRestarting, metav1.ConditionFalse, v1alpha1.ReasonNotRestarting, "")
}
