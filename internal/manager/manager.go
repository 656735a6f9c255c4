// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package manager creates the controllers of all kinds, connects them to the backends (a runtime.Registry), and runs them against one API server.
package manager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/devserver"
	"github.com/berth-dev/berth/controllers/discovery"
	"github.com/berth-dev/berth/controllers/instance"
	"github.com/berth-dev/berth/controllers/languageserver"
	"github.com/berth-dev/berth/controllers/plan"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/controllers/strategy"
	"github.com/berth-dev/berth/controllers/strategyrun"
	"github.com/berth-dev/berth/internal/activity"
	"github.com/berth-dev/berth/internal/elapsed"
	"github.com/berth-dev/berth/internal/hook"
	"github.com/berth-dev/berth/internal/hosts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/pod"
	"github.com/berth-dev/berth/internal/tolerant"
)

// fieldOwner is the field owner of the writes of the manager.
const fieldOwner = "berth"

// Options configure a manager.
type Options struct {
	// Runtimes are the backends that run processes. Required. Only the manager may read their Events.
	Runtimes *runtime.Registry
	// LanguageServers is the runtime that runs language servers behind multiplexers. The multiplexers are processes of a backend in Runtimes, whose Events also
	// deliver the changes of the servers. The caller closes LanguageServers after the manager has ended. nil means that language servers run in Runtimes,
	// without a multiplexer.
	LanguageServers runtime.Runtime
	// LanguageServersInPods is such a runtime for language servers in Pods; nil disables them.
	LanguageServersInPods runtime.Runtime
	// Host identifies the manager among several that serve the API server. Each object that runs on a machine belongs to one host, and other hosts ignore it.
	// The zero value means that there is only this manager.
	Host Host
	// PolicyNamespace is the namespace of the ConfigMap berth-policy. If it is set, programs start on this machine only for namespaces that permit it; empty
	// permits all namespaces.
	PolicyNamespace string
	// Namespaces are the namespaces whose objects the manager serves; empty means all. The manager ignores objects and processes of other namespaces.
	Namespaces []string
	// Clock returns the time; nil means the real clock.
	Clock clock.WithTicker
	// Logger is the logger of the manager and its controllers.
	Logger logr.Logger

	// Metrics configures how metrics are served. An empty BindAddress disables them.
	Metrics metricsserver.Options
	// HealthProbeBindAddress is the address of /healthz and /readyz; empty disables them.
	HealthProbeBindAddress string
	// PprofBindAddress is the address of Go profiles, which are served without authentication; empty and 0 disable them.
	PprofBindAddress string

	// Presence records the use of terminals through the endpoint; nil creates a Tracker.
	Presence *activity.Tracker

	// Hooks is where the manager receives reports of the hooks of coding agents; the zero value disables them.
	Hooks hook.Location

	// LeaderElection allows several managers to run, of which only the leader acts.
	LeaderElection bool
	// LeaderElectionNamespace is the namespace of the lease; empty means the namespace of the manager's Pod.
	LeaderElectionNamespace string

	// Concurrency is how many objects of one kind are reconciled in parallel; 0 means process.DefaultConcurrency.
	Concurrency int
	// LeftoverInterval is the interval between two checks for processes without an object; 0 means three minutes.
	LeftoverInterval time.Duration
	// LeftoverGrace is the grace period before a process without an object is killed; 0 means ten seconds.
	LeftoverGrace time.Duration
	// ShutdownTimeout bounds how long the manager waits for its components to stop; 0 means ten seconds.
	ShutdownTimeout time.Duration
}

// Host identifies the machine and state directory of a manager among those that serve one API server.
type Host struct {
	// Name is the name of the host as returned by hosts.Name; empty for a manager that runs nothing on a machine.
	Name string
	// Lease is the name of the Lease that the manager renews; empty means Name. If both are empty, there is only this manager.
	Lease string
	// Namespace is the namespace of the Leases of all hosts. It must exist.
	Namespace string
	// Runtimes are the types that the manager serves.
	Runtimes []v1alpha1.RuntimeType
	// Holder identifies this start of the manager; with the zero value, all managers with this name count as one.
	Holder hosts.Holder
	// Endpoint returns where the manager serves logs and terminals. Optional.
	Endpoint func() hosts.Endpoint
}

// HostOptions returns the options of the Lease of a host, without its clients, clock and log.
func (h Host) HostOptions() hosts.Options {
	return hosts.Options{Name: h.Name, Lease: h.Lease, Runtimes: h.Runtimes, Holder: h.Holder, Endpoint: h.Endpoint, Namespace: h.Namespace}
}

// Defaults of Options.
const (
	defaultLeftoverInterval = 3 * time.Minute
	defaultLeftoverGrace    = 10 * time.Second
	defaultShutdownTimeout  = 10 * time.Second
)

// setups are the Setup functions that need only the Dependencies. LanguageServers have their own runtimes.
var setups = []func(ctrl.Manager, process.Dependencies) error{
	instance.Setup,
	discovery.Setup,
	devserver.Setup,
	strategyrun.Setup,
	strategy.Setup,
	plan.Setup,
}

// Scheme returns a scheme with the kinds of Kubernetes and of Berth.
func Scheme() *apiruntime.Scheme {
	scheme := apiruntime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	return scheme
}

// +kubebuilder:rbac:groups="",resources=secrets;configmaps,verbs=get
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,verbs=get;create;update

// New returns a manager, which is inactive until Start is called. It returns an error if Options.Runtimes is not set.
func New(cfg *rest.Config, opts Options) (ctrl.Manager, error) {
	if opts.Runtimes == nil {
		return nil, errors.New("create a manager: Options.Runtimes is not set")
	}
	opts = withDefaults(opts)
	bad := newReporter(opts.Logger)
	mgr, err := ctrl.NewManager(tolerant.Config(unthrottled(cfg), bad.report), controllerRuntimeOptions(opts))
	if err != nil {
		return nil, fmt.Errorf("create a manager: %w", err)
	}
	bad.recorder = mgr.GetEventRecorder("berth")
	mgr = scope(mgr, opts.Namespaces)
	others := newHosts(mgr, opts)
	leftovers := newCollector(opts, others, mgr.GetAPIReader(), mgr.GetLogger().WithName("leftovers"))
	dispatcher := process.NewDispatcher(mgr.GetCache(), opts.Runtimes.All(), leftovers.poke)
	deps := process.Dependencies{
		Runtimes: opts.Runtimes, Clock: opts.Clock, Dispatcher: dispatcher, Concurrency: opts.Concurrency, Presence: opts.Presence,
		Hosts: others, Restarts: process.NewRestarts(), Permission: newPermission(mgr, opts),
	}
	waker := newWaker(dispatcher)
	opts.Presence.OnUse(waker.Add)
	err = errors.Join(mgr.Add(dispatcher), mgr.Add(leftovers), mgr.Add(waker), addChecks(mgr))
	if others != nil {
		err = errors.Join(err, mgr.Add(others))
	}
	if opts.Hooks.Dir != "" {
		deps.Reports, deps.HookSocket = hook.NewTracker(opts.Clock), opts.Hooks.Socket()
		deps.Reports.OnReport(waker.Add)
		err = errors.Join(err, addHooks(mgr, opts.Hooks, deps.Reports))
	}
	if err != nil {
		return nil, fmt.Errorf("add controllers and servers to the manager: %w", err)
	}
	for _, setup := range setups {
		if err := setup(mgr, deps); err != nil {
			return nil, err
		}
	}
	deps.Runtimes = languageRuntimes(mgr, opts)
	return mgr, languageserver.Setup(mgr, deps)
}

// addHooks adds the server that receives the reports of hooks.
func addHooks(mgr ctrl.Manager, at hook.Location, reports *hook.Tracker) error {
	return mgr.Add(&hook.Server{Location: at, Find: instance.FindProgram(mgr.GetCache()), Reports: reports, Log: mgr.GetLogger().WithName("hooks")})
}

// newHosts returns nil if there is only this manager.
func newHosts(mgr ctrl.Manager, opts Options) *hosts.Hosts {
	if opts.Host.Name == "" && opts.Host.Lease == "" {
		return nil
	}
	options := opts.Host.HostOptions()
	options.Client, options.Reader, options.Clock, options.Log = mgr.GetClient(), mgr.GetAPIReader(), opts.Clock, mgr.GetLogger().WithName("hosts")
	return hosts.New(options)
}

// newPermission returns nil if PolicyNamespace is empty: programs may then start on this machine for every namespace.
func newPermission(mgr ctrl.Manager, opts Options) *process.Permission {
	if opts.PolicyNamespace == "" {
		return nil
	}
	return &process.Permission{Cache: mgr.GetCache(), Live: mgr.GetAPIReader(), Namespace: opts.PolicyNamespace}
}

// unthrottled disables the client-side rate limit, unless the configuration sets one. The API server limits requests itself, and the default of client-go,
// five requests per second, is too low: an object needs three requests until it is ready.
func unthrottled(cfg *rest.Config) *rest.Config {
	if cfg.QPS != 0 || cfg.RateLimiter != nil {
		return cfg
	}
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1
	return cfg
}

func withDefaults(opts Options) Options {
	if opts.Clock == nil {
		opts.Clock = clock.RealClock{}
	}
	opts.Clock = elapsed.New(opts.Clock)
	if opts.Presence == nil {
		opts.Presence = activity.New(opts.Clock)
	}
	if opts.Logger.GetSink() == nil {
		opts.Logger = logr.Discard()
	}
	opts.Metrics.BindAddress = cmp.Or(opts.Metrics.BindAddress, "0")
	opts.HealthProbeBindAddress = cmp.Or(opts.HealthProbeBindAddress, "0")
	opts.LeftoverInterval = cmp.Or(opts.LeftoverInterval, defaultLeftoverInterval)
	opts.LeftoverGrace = cmp.Or(opts.LeftoverGrace, defaultLeftoverGrace)
	opts.ShutdownTimeout = cmp.Or(opts.ShutdownTimeout, defaultShutdownTimeout)
	return opts
}

func controllerRuntimeOptions(opts Options) ctrl.Options {
	return ctrl.Options{
		Scheme:                 Scheme(),
		Logger:                 opts.Logger,
		Metrics:                opts.Metrics,
		HealthProbeBindAddress: opts.HealthProbeBindAddress,
		PprofBindAddress:       opts.PprofBindAddress,
		// The cache drops managed fields, because the manager does not use them and they take a third of the memory.
		Cache: cache.Options{
			DefaultTransform:  cache.TransformStripManagedFields(),
			DefaultNamespaces: cachedNamespaces(opts.Namespaces),
			ByObject:          cached(opts),
		},
		Client: client.Options{
			FieldOwner:      fieldOwner,
			FieldValidation: metav1.FieldValidationStrict,
			// Secrets and ConfigMaps are read when they are needed and are not cached.
			Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.Secret{}, &corev1.ConfigMap{}}},
		},
		LeaderElection:          opts.LeaderElection,
		LeaderElectionID:        "berth.dev",
		LeaderElectionNamespace: opts.LeaderElectionNamespace,
		// The controllers have stopped when the lease is released, so the next manager need not wait until the lease expires.
		LeaderElectionReleaseOnCancel: true,
		GracefulShutdownTimeout:       &opts.ShutdownTimeout,
		// A program may run several managers one after the other. Their controllers have the same names, which controller-runtime otherwise rejects.
		Controller: config.Controller{SkipNameValidation: ptr.To(true)},
	}
}

// cached limits the cache for kinds with more objects than the manager needs.
func cached(opts Options) map[client.Object]cache.ByObject {
	limits := map[client.Object]cache.ByObject{}
	// The manager watches Services only if it runs Pods, because the API server of berth up serves neither Services nor Pods.
	if opts.Runtimes.Has(v1alpha1.RuntimePod) {
		limits[&corev1.Service{}] = cache.ByObject{Label: labels.SelectorFromSet(labels.Set{pod.LabelManagedBy: pod.ManagedBy})}
	}
	if opts.PolicyNamespace != "" {
		limits[&corev1.ConfigMap{}] = cache.ByObject{
			Namespaces: map[string]cache.Config{opts.PolicyNamespace: {}},
			Field:      fields.OneTermEqualSelector("metadata.name", process.PolicyConfigMap),
		}
	}
	return limits
}

// cacheSyncPatience bounds one request to /readyz.
const cacheSyncPatience = time.Second

// addChecks adds /healthz, which reports that the manager is alive, and /readyz, which reports whether its caches have synced.
func addChecks(mgr ctrl.Manager) error {
	synced := func(req *http.Request) error {
		ctx, cancel := context.WithTimeout(req.Context(), cacheSyncPatience)
		defer cancel()
		if !mgr.GetCache().WaitForCacheSync(ctx) {
			return errors.New("the caches are not synced yet")
		}
		return nil
	}
	return errors.Join(mgr.AddHealthzCheck("ping", healthz.Ping), mgr.AddReadyzCheck("cache", synced))
}
