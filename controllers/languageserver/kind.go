// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package languageserver implements what is specific to LanguageServers: the configuration and the reports of the multiplexer in front of the server, and when
// an unused server is put to sleep.
package languageserver

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/owner"
	"github.com/berth-dev/berth/controllers/podspec"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/perobject"
	"github.com/berth-dev/berth/internal/runtime"
)

// Reporter is a runtime that runs a multiplexer in front of every server.
type Reporter interface {
	// Report returns the latest report of the multiplexer of an object. It returns false if there is none.
	Report(uid types.UID) (lsp.Report, bool)
	// Endpoint returns the path of the socket that clients connect to. It returns "" while that is unknown.
	Endpoint(uid types.UID) string
	// Keep sets whether the multiplexer must exist even if no server is running. It may be called repeatedly.
	Keep(uid types.UID, keep bool)
	// SetFolders changes the folders of the workspace of a running server.
	SetFolders(ctx context.Context, uid types.UID, folders []string) error
	// Gone reports whether the multiplexer has exited and is not started again before the next start of the server.
	Gone(ctx context.Context, uid types.UID) bool
}

// Kind implements process.Kind for LanguageServers. Its in-memory state may be lost: it only saves writes and makes the entries in status.recentRestarts
// more precise.
type Kind struct {
	client   client.Client
	reader   client.Reader
	owners   owner.Setter
	clock    clock.PassiveClock
	runtimes *runtime.Registry
	memories perobject.Map[objectCache] // of each object; only one reconcile at a time uses it
}

var (
	_ process.Kind = (*Kind)(nil)
)

// objectCache is what the manager caches for one object.
type objectCache struct {
	// counted is when the counts in the status were last updated.
	counted time.Time
	// The following fields belong to one incarnation: asked is when its stop was requested, and trouble is what was wrong with it.
	incarnation int64
	asked       time.Time
	trouble     string
	// startFolders are the folders with which the incarnation was started, if it may change them while it runs.
	startFolders []string
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

// New returns the kind. cache reads from a cache, reader from the API server. The kind uses the reports of backends that implement Reporter.
func New(cache client.Client, reader client.Reader, runtimes *runtime.Registry, now clock.PassiveClock) *Kind {
	if now == nil {
		now = clock.RealClock{}
	}
	return &Kind{client: cache, reader: reader, owners: owner.Setter{Client: cache, Reader: reader}, clock: now, runtimes: runtimes}
}

// Runtime returns the backend of an object.
func (k *Kind) Runtime(object process.Object) runtime.Runtime {
	return k.runtimes.For(k.Traits(object).Runtime)
}

// Traits implements process.Kind.
func (*Kind) Traits(object process.Object) process.Traits {
	spec := languageServer(object).Spec.Runtime
	return process.Traits{Runtime: podspec.Type(spec), Template: podspec.Template(spec)}
}

// reporter returns the Reporter of an object. It returns nil if the backend has no multiplexer; then a running server counts as serving.
func (k *Kind) reporter(server *v1alpha1.LanguageServer) Reporter {
	reporter, _ := k.Runtime(server).(Reporter)
	return reporter
}

// Resource implements process.Kind.
func (k *Kind) Resource() string { return "languageservers" }

// New returns an empty LanguageServer.
func (k *Kind) New() process.Object { return &v1alpha1.LanguageServer{} }

// NewList returns an empty list of LanguageServers.
func (k *Kind) NewList() client.ObjectList { return &v1alpha1.LanguageServerList{} }

// Forget implements process.Kind: it drops the data cached for the object and ends its multiplexer.
func (k *Kind) Forget(uid types.UID) {
	for _, backend := range k.runtimes.All() {
		if reporter, is := backend.(Reporter); is {
			reporter.Keep(uid, false)
		}
	}
	k.memories.Forget(uid)
}

// Asleep implements process.Kind: it reports whether the server has been unused for spec.idleTimeoutSeconds. A sleeping server stays asleep until a client
// connects, even if its multiplexer or the manager has just started and does not know how long the server has been idle. A sleeping server whose Pod was lost
// wakes, because no client could connect to it.
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
		asleep = !report.IdleSince.IsZero() && k.clock.Since(report.IdleSince) >= idleTimeout(server)
	}
	if asleep {
		k.keep(server, true) // clients wake the server by connecting to the multiplexer
	}
	return asleep
}

// wanted reports whether the object is available for use, now or on demand.
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

func languageServer(object process.Object) *v1alpha1.LanguageServer {
	return object.(*v1alpha1.LanguageServer) // New returns only LanguageServers
}
