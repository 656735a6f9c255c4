// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package languageserver is what is special to LanguageServers: what the multiplexer in front of the server is told, what it reports, and
// when a server sleeps because nobody uses it.
package languageserver

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/owner"
	"github.com/berth-dev/berth/controllers/place"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/runtime"
)

// Reporter is a runtime with a multiplexer in front of every server.
type Reporter interface {
	// Report gives the newest report of the multiplexer of an object; false while there is none.
	Report(uid types.UID) (lsp.Report, bool)
	// Endpoint is the path of the socket that its clients connect to; empty while that is not known.
	Endpoint(uid types.UID) string
	// Keep says whether the multiplexer has to be there although no server runs. It may be said again at any time.
	Keep(uid types.UID, keep bool)
	// Gone says that there is no multiplexer and that none comes before the next server.
	Gone(ctx context.Context, uid types.UID) bool
}

// Kind is the kind LanguageServer. What it keeps in memory only saves writes, or makes what is told of a restart more exact.
type Kind struct {
	client   client.Client
	reader   client.Reader
	owners   owner.Setter
	clock    clock.PassiveClock
	runtimes *runtime.Registry

	mu       sync.Mutex
	memories map[types.UID]*memory
}

var (
	_ process.Kind = (*Kind)(nil)
)

// memory is what is kept of one object while this manager runs.
type memory struct {
	// counted is when the counts of the status were taken over last.
	counted time.Time
	// asked is when the end of an incarnation was asked for, and trouble what was wrong with it.
	incarnation int64
	asked       time.Time
	trouble     string
}

// +kubebuilder:rbac:groups=berth.dev,resources=languageservers,verbs=get;list;watch;patch;delete
// +kubebuilder:rbac:groups=berth.dev,resources=languageservers/status,verbs=patch
// +kubebuilder:rbac:groups=berth.dev,resources=languageservers/finalizers,verbs=update
// +kubebuilder:rbac:groups=berth.dev,resources=instances,verbs=get;list;watch

// Setup registers the controller of LanguageServers with the manager.
func Setup(mgr ctrl.Manager, deps process.Dependencies) error {
	kind := New(mgr.GetClient(), mgr.GetAPIReader(), deps.Runtimes, deps.Clock)
	if !deps.Runtimes.Has(v1alpha1.RuntimePod) {
		return process.Setup(mgr, kind, deps)
	}
	return process.Setup(mgr, kind, deps, func(b *builder.Builder) *builder.Builder { return b.Owns(&corev1.Service{}) })
}

// New gives the kind. The client reads from a cache, the reader past it. A backend that is a Reporter is asked for its reports.
func New(cache client.Client, reader client.Reader, runtimes *runtime.Registry, now clock.PassiveClock) *Kind {
	if now == nil {
		now = clock.RealClock{}
	}
	return &Kind{
		client: cache, reader: reader, owners: owner.Setter{Client: cache, Reader: reader}, clock: now, runtimes: runtimes, memories: map[types.UID]*memory{},
	}
}

// Runtime returns the backend of an object.
func (k *Kind) Runtime(object process.Object) runtime.Runtime {
	return k.runtimes.For(k.Traits(object).Runtime)
}

// Traits implements process.Kind.
func (*Kind) Traits(object process.Object) process.Traits {
	return process.Traits{Runtime: place.Type(languageServer(object).Spec.Runtime)}
}

// reporter gives that of an object: nil when its backend has no multiplexer, and then a server that runs serves.
func (k *Kind) reporter(server *v1alpha1.LanguageServer) Reporter {
	reporter, _ := k.Runtime(server).(Reporter)
	return reporter
}

// Resource is the plural lower-case name.
func (k *Kind) Resource() string { return "languageservers" }

// New gives an empty LanguageServer.
func (k *Kind) New() process.Object { return &v1alpha1.LanguageServer{} }

// NewList gives an empty list of LanguageServers.
func (k *Kind) NewList() client.ObjectList { return &v1alpha1.LanguageServerList{} }

// Forget drops what is kept of an object that is gone, and its multiplexer with it.
func (k *Kind) Forget(uid types.UID) {
	for _, backend := range k.runtimes.All() {
		if reporter, is := backend.(Reporter); is {
			reporter.Keep(uid, false)
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.memories, uid)
}

// Asleep says whether nobody has used the server for long enough. One that sleeps goes on doing so until a client comes: that its multiplexer
// or the manager is new, and does not know since when it is idle, wakes nobody. One whose Pod was lost wakes, for no client could come.
func (k *Kind) Asleep(ctx context.Context, object process.Object, now time.Time) bool {
	server := languageServer(object)
	if server.Spec.State != v1alpha1.StateOnDemand {
		return false
	}
	report, known := k.report(server)
	asleep := lifecycle.Asleep(&server.Status.ProcessStatus)
	switch {
	case known && report.Clients > 0:
		asleep = false
	case asleep && k.gone(ctx, server):
		asleep = false
	case known && !asleep:
		asleep = !report.IdleSince.IsZero() && now.Sub(report.IdleSince) >= idleTimeout(server)
	}
	if asleep {
		k.keep(server, true) // nothing else of the kind says so while nothing is to be started
	}
	return asleep
}

// wanted says that the object is there to be used, now or on demand.
func wanted(server *v1alpha1.LanguageServer) bool {
	return server.Spec.State != v1alpha1.StateStopped && server.DeletionTimestamp.IsZero()
}

func (k *Kind) report(server *v1alpha1.LanguageServer) (lsp.Report, bool) {
	reporter := k.reporter(server)
	if reporter == nil {
		return lsp.Report{}, false
	}
	return reporter.Report(server.UID)
}

func (k *Kind) keep(server *v1alpha1.LanguageServer, keep bool) {
	if reporter := k.reporter(server); reporter != nil {
		reporter.Keep(server.UID, keep)
	}
}

func (k *Kind) gone(ctx context.Context, server *v1alpha1.LanguageServer) bool {
	reporter := k.reporter(server)
	return reporter != nil && reporter.Gone(ctx, server.UID)
}

// memory gives what is kept of an object. One reconcile at a time uses it.
func (k *Kind) memory(uid types.UID) *memory {
	k.mu.Lock()
	defer k.mu.Unlock()
	m, ok := k.memories[uid]
	if !ok {
		m = &memory{}
		k.memories[uid] = m
	}
	return m
}

func languageServer(object process.Object) *v1alpha1.LanguageServer {
	return object.(*v1alpha1.LanguageServer) // New gives nothing else
}
