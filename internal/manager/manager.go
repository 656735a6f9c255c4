// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package manager puts the controllers together: everything that runs against one API server and one runtime.
package manager

import (
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
	"k8s.io/apimachinery/pkg/types"
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
	"github.com/berth-dev/berth/controllers/plan"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/controllers/strategy"
	"github.com/berth-dev/berth/controllers/strategyrun"
	"github.com/berth-dev/berth/internal/hosts"
	"github.com/berth-dev/berth/internal/presence"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/pod"
)

// FieldOwner is under which name the manager writes.
const FieldOwner = "berth"

// Options is what a manager is made with.
type Options struct {
	// Runtimes are the backends that run processes. Required. Only the manager reads their Events.
	Runtimes *runtime.Registry
	// LanguageServers is where language servers run, behind multiplexers that are processes of Runtime; the manager sets its OnChange. nil means
	// in Runtime, without a multiplexer. Who makes it closes it, after the manager has ended.
	LanguageServers LanguageServers
	// LanguageServersInPods is where those run that ask for a Pod; nil means nowhere.
	LanguageServersInPods LanguageServers
	// Host makes the manager one of several that serve the API server: objects that run on a machine belong to one host each, and other hosts leave them alone.
	// The zero value is a manager that is alone.
	Host Host
	// PolicyNamespace is where the ConfigMap berth-policy is. If it is set, programs start on this machine only for namespaces that permit it; empty permits
	// all of them.
	PolicyNamespace string
	// Namespaces are those whose objects the manager serves; none means all. Objects and processes of other namespaces are left alone.
	Namespaces []string
	// Clock gives the time; nil means the real one.
	Clock clock.WithTicker
	// Logger is where the manager and its controllers log.
	Logger logr.Logger

	// Metrics says where and how metrics are served. An empty BindAddress means nowhere.
	Metrics metricsserver.Options
	// HealthProbeBindAddress is where /healthz and /readyz are served; empty means nowhere.
	HealthProbeBindAddress string

	// Presence is where the endpoint notes who uses the terminals of objects; nil means that nobody does.
	Presence *presence.Book

	// LeaderElection lets several managers run of which one acts.
	LeaderElection bool
	// LeaderElectionNamespace is where the lease is; empty means the namespace of the manager's Pod.
	LeaderElectionNamespace string

	// Concurrency is how many objects of one kind are reconciled at once; 0 means process.DefaultConcurrency.
	Concurrency int
	// LeftoverInterval is how often processes without an object are looked for; 0 means every three minutes.
	LeftoverInterval time.Duration
	// LeftoverGrace is how long such a process has to end by itself before it is killed; 0 means ten seconds.
	LeftoverGrace time.Duration
	// ShutdownTimeout is how long the manager waits for its parts to end; 0 means ten seconds.
	ShutdownTimeout time.Duration
}

// Host is the machine and state directory of a manager, among those that serve one API server.
type Host struct {
	// Name is that of hosts.Name; empty for a manager that runs nothing on a machine.
	Name string
	// Lease is the name under which the manager reports; empty means Name. Both empty: the manager is alone.
	Lease string
	// Namespace is where the Leases of all hosts are. It must exist.
	Namespace string
	// Runtimes are the types that the manager serves.
	Runtimes []v1alpha1.RuntimeType
}

// LanguageServers is a runtime for language servers, such as langserver.Runtime.
type LanguageServers interface {
	runtime.Runtime
	// OnChange sets who is told the UIDs that something happened to.
	OnChange(wake func(types.UID))
}

// The defaults of Options.
const (
	defaultLeftoverInterval = 3 * time.Minute
	defaultLeftoverGrace    = 10 * time.Second
	defaultShutdownTimeout  = 10 * time.Second
)

// setups register the controllers, one per kind.
var setups = []func(ctrl.Manager, process.Dependencies) error{
	devserver.Setup,
	strategyrun.Setup,
	strategy.Setup,
	plan.Setup,
}

// setupInstances registers the controllers of Instances, and of what finds them.
func setupInstances(mgr ctrl.Manager, deps process.Dependencies) error {
	waker := newWaker(deps.Dispatcher)
	if err := mgr.Add(waker); err != nil {
		return fmt.Errorf("add the parts of the manager: %w", err)
	}
	deps.Presence.OnUse(waker.tell)
	deps.Runtimes.OnChange(waker.tell)
	for _, setup := range []func(ctrl.Manager, process.Dependencies) error{instance.Setup, discovery.Setup} {
		if err := setup(mgr, deps); err != nil {
			return err
		}
	}
	return nil
}

// Scheme holds the kinds of Kubernetes and of Berth.
func Scheme() *apiruntime.Scheme {
	scheme := apiruntime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	return scheme
}

// +kubebuilder:rbac:groups="",resources=secrets;configmaps,verbs=get
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,verbs=get;create;update

// New gives a manager that acts once its Start is called.
func New(cfg *rest.Config, opts Options) (ctrl.Manager, error) {
	if opts.Runtimes == nil {
		return nil, errors.New("make a manager: Options.Runtimes is not set")
	}
	opts = withDefaults(opts)
	mgr, err := ctrl.NewManager(unthrottled(cfg), controllerRuntimeOptions(opts))
	if err != nil {
		return nil, fmt.Errorf("make a manager: %w", err)
	}
	mgr = scope(mgr, opts.Namespaces)
	others := newHosts(mgr, opts)
	leftovers := newCollector(opts, others, mgr.GetAPIReader(), mgr.GetLogger().WithName("leftovers"))
	dispatcher := process.NewDispatcher(mgr.GetCache(), opts.Runtimes.All(), leftovers.poke)
	deps := process.Dependencies{
		Runtimes: opts.Runtimes, Clock: opts.Clock, Dispatcher: dispatcher, Concurrency: opts.Concurrency, Presence: opts.Presence,
		Hosts: others, Restarts: process.NewRestarts(), Permission: newPermission(mgr, opts),
	}
	if err := setupInstances(mgr, deps); err != nil {
		return nil, err
	}
	for _, setup := range setups {
		if err := setup(mgr, deps); err != nil {
			return nil, err
		}
	}
	if err := setupLanguageServers(mgr, deps, opts); err != nil {
		return nil, err
	}
	if err := errors.Join(mgr.Add(dispatcher), mgr.Add(leftovers), addChecks(mgr)); err != nil {
		return nil, fmt.Errorf("add the parts of the manager: %w", err)
	}
	if others != nil {
		if err := mgr.Add(others); err != nil {
			return nil, fmt.Errorf("add the parts of the manager: %w", err)
		}
	}
	return mgr, nil
}

// newHosts returns nil for a manager that is alone.
func newHosts(mgr ctrl.Manager, opts Options) *hosts.Hosts {
	if opts.Host.Name == "" && opts.Host.Lease == "" {
		return nil
	}
	return hosts.New(hosts.Options{
		Name: opts.Host.Name, Lease: opts.Host.Lease, Runtimes: opts.Host.Runtimes, Namespace: opts.Host.Namespace,
		Client: mgr.GetClient(), Reader: mgr.GetAPIReader(), Clock: opts.Clock, Log: mgr.GetLogger().WithName("hosts"),
	})
}

// newPermission returns nil for a manager that acts for all namespaces.
func newPermission(mgr ctrl.Manager, opts Options) *process.Permission {
	if opts.PolicyNamespace == "" {
		return nil
	}
	return &process.Permission{Cache: mgr.GetCache(), Live: mgr.GetAPIReader(), Namespace: opts.PolicyNamespace}
}

// unthrottled leaves it to the API server's own fairness how much a manager may ask, unless somebody has chosen a limit. Without that client-go
// lets five requests a second through, and an object needs three until it is ready.
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
	if opts.Logger.GetSink() == nil {
		opts.Logger = logr.Discard()
	}
	if opts.Metrics.BindAddress == "" {
		opts.Metrics.BindAddress = "0"
	}
	if opts.HealthProbeBindAddress == "" {
		opts.HealthProbeBindAddress = "0"
	}
	if opts.LeftoverInterval == 0 {
		opts.LeftoverInterval = defaultLeftoverInterval
	}
	if opts.LeftoverGrace == 0 {
		opts.LeftoverGrace = defaultLeftoverGrace
	}
	if opts.ShutdownTimeout == 0 {
		opts.ShutdownTimeout = defaultShutdownTimeout
	}
	return opts
}

func controllerRuntimeOptions(opts Options) ctrl.Options {
	return ctrl.Options{
		Scheme:                 Scheme(),
		Logger:                 opts.Logger,
		Metrics:                opts.Metrics,
		HealthProbeBindAddress: opts.HealthProbeBindAddress,
		// Nobody reads managed fields here, and they are a third of the memory.
		Cache: cache.Options{
			DefaultTransform:  cache.TransformStripManagedFields(),
			DefaultNamespaces: cachedNamespaces(opts.Namespaces),
			ByObject:          cached(opts),
		},
		Client: client.Options{
			FieldOwner:      FieldOwner,
			FieldValidation: metav1.FieldValidationStrict,
			// Secrets are read when they are needed and not kept.
			Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.Secret{}, &corev1.ConfigMap{}}},
		},
		LeaderElection:          opts.LeaderElection,
		LeaderElectionID:        "berth.dev",
		LeaderElectionNamespace: opts.LeaderElectionNamespace,
		// Its controllers have ended by then, so the next one need not wait until the lease is over.
		LeaderElectionReleaseOnCancel: true,
		GracefulShutdownTimeout:       &opts.ShutdownTimeout,
		// One program may run several managers, one after the other.
		Controller: config.Controller{SkipNameValidation: ptr.To(true)},
	}
}

// cached limits what is kept of kinds that have more objects than a manager needs.
func cached(opts Options) map[client.Object]cache.ByObject {
	limits := map[client.Object]cache.ByObject{
		// Of Services only ours, which are watched where Pods run.
		&corev1.Service{}: {Label: labels.SelectorFromSet(labels.Set{pod.LabelManagedBy: pod.ManagedBy})},
	}
	if opts.PolicyNamespace != "" {
		limits[&corev1.ConfigMap{}] = cache.ByObject{
			Namespaces: map[string]cache.Config{opts.PolicyNamespace: {}},
			Field:      fields.OneTermEqualSelector("metadata.name", process.PolicyConfigMap),
		}
	}
	return limits
}

// cacheSyncPatience is how long one question to /readyz may take.
const cacheSyncPatience = time.Second

// addChecks serves /healthz, which says that the manager lives, and /readyz, which says that it has seen the objects.
func addChecks(mgr ctrl.Manager) error {
	synced := func(req *http.Request) error {
		ctx, cancel := context.WithTimeout(req.Context(), cacheSyncPatience)
		defer cancel()
		if !mgr.GetCache().WaitForCacheSync(ctx) {
			return errors.New("the objects are not all read yet")
		}
		return nil
	}
	return errors.Join(mgr.AddHealthzCheck("ping", healthz.Ping), mgr.AddReadyzCheck("cache", synced))
}
