// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/activity"
	"github.com/berth-dev/berth/internal/endpoint"
	"github.com/berth-dev/berth/internal/hook"
	"github.com/berth-dev/berth/internal/hosts"
	"github.com/berth-dev/berth/internal/manager"
)

// managerFlags holds the values of the flags of berth manager. Most flags set the options of a component directly.
type managerFlags struct {
	runtimeOptions
	connection             connectionFlags
	manager                manager.Options
	endpoint               endpoint.Options
	runtimes               []string
	checkNamespaces        bool
	metricsSecure, verbose bool
	logFormat              string
}

func (a *app) managerCommand() *cobra.Command {
	f := &managerFlags{}
	command := &cobra.Command{
		Use:   "manager",
		Short: "Run the controllers against any API server",
		Long: "Manager runs the controllers of Berth against the API server of the kubeconfig. By default it runs processes on this machine.\n" +
			"The CRDs must be installed. Manager runs programs on this machine only for namespaces that permit it: with the label\n" +
			v1alpha1.LabelAllowRuntime + "=Host (or Tmux, or Docker), or through the ConfigMap " + process.PolicyConfigMap + ".\n" +
			"When the manager exits, the processes keep running; the next manager with the same --state-dir takes them over.",
		Example: "  # Run the programs of namespace default on this machine\n" +
			"  kubectl label namespace default " + v1alpha1.LabelAllowRuntime + "=Host\n" +
			"  berth manager\n\n" +
			"  # Run objects only in Pods, as one of several managers\n" +
			"  berth manager --runtimes Pod --leader-elect",
		Args: needs(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error { return a.manager(command.Context(), f) },
	}
	flags := command.Flags()
	flags.StringVar(&f.connection.kubeconfig, "kubeconfig", "", "kubeconfig to use; default: KUBECONFIG, then ~/.kube/config, then the one of berth up")
	flags.StringVar(&f.connection.overrides.CurrentContext, "context", "", "context of the kubeconfig to use")
	f.addTo(flags, "directory for the records of the processes on this machine")
	flags.StringVar(&f.runAsName, "run-as", "", runAsHelp)
	flags.StringVar(&f.manager.Metrics.BindAddress, "metrics-bind-address", "0", "address to serve metrics on, such as 127.0.0.1:8080; 0 disables them")
	flags.BoolVar(&f.metricsSecure, "metrics-secure", false, "serve metrics over TLS, and only to clients whose token permits them to get /metrics")
	flags.StringVar(&f.manager.Metrics.CertDir, "metrics-cert-dir", "", "directory with tls.crt and tls.key for the metrics; default: generate a certificate")
	flags.StringVar(&f.manager.HealthProbeBindAddress, "health-probe-bind-address", "0", "address to serve /healthz and /readyz on, such as :8081; 0 disables them")
	flags.StringVar(&f.endpoint.Address, "endpoint-bind-address", "127.0.0.1:0", "address to serve logs and terminals on; an address other than loopback needs a certificate; 0 disables them")
	flags.StringVar(&f.endpoint.CertFile, "endpoint-cert-file", "", "certificate file for serving logs and terminals")
	flags.StringVar(&f.endpoint.KeyFile, "endpoint-key-file", "", "private key file of that certificate")
	flags.BoolVar(&f.manager.LeaderElection, "leader-elect", false,
		"run as one of several managers: wait while another manager uses the state directory; unless --runtimes is Host, also wait to be elected leader")
	flags.StringVar(&f.manager.LeaderElectionNamespace, "leader-election-namespace", endpoint.Namespace, "namespace of the installation, which contains the Leases of the leader and of hosts")
	flags.StringSliceVar(&f.runtimes, "runtimes", []string{string(v1alpha1.RuntimeHost)}, "runtimes to serve: Host (this machine, with Tmux and Docker) and Pod (the cluster); empty serves none")
	flags.BoolVar(&f.checkNamespaces, "check-namespaces", true, "run programs on this machine only for namespaces that permit it with the label "+v1alpha1.LabelAllowRuntime+
		" or the ConfigMap "+process.PolicyConfigMap)
	flags.StringSliceVar(&f.namespaces, "namespaces", nil,
		"namespaces whose objects the manager reconciles; the manager needs no permissions in other namespaces; empty for all")
	flags.StringVar(&f.image, "multiplexer-image", "", "image that contains berth-lsp-pod, for language servers in Pods; default: the image of the Pod of this manager")
	flags.BoolVarP(&f.verbose, "verbose", "v", false, "log debug messages")
	flags.StringVar(&f.logFormat, "log-format", string(logText), "format of the log: text or json")
	flags.IntVar(&f.manager.Concurrency, "concurrency", process.DefaultConcurrency, "number of objects of each kind that are reconciled at the same time, 1 to 1000")
	flags.StringVar(&f.manager.PprofBindAddress, "pprof-bind-address", "0", "loopback address to serve Go profiles on, such as 127.0.0.1:6060, without authentication; 0 disables them")
	return command
}

func (a *app) manager(ctx context.Context, f *managerFlags) (err error) {
	config, _, err := loadConfig(&f.connection)
	if errors.Is(err, rest.ErrNotInCluster) || (err != nil && f.connection.kubeconfig == "") {
		inside, insideErr := rest.InClusterConfig()
		if insideErr != nil {
			return err
		}
		config = inside
	} else if err != nil {
		return err
	}
	if err := f.validate(); err != nil {
		return err
	}
	if f.runAs, err = lookUpUser(f.runAsName); err != nil {
		return err
	}
	level := slog.LevelInfo
	if f.verbose {
		level = slog.LevelDebug
	}
	f.log = useLogger(a.err, level, logFormat(f.logFormat))
	if f.manager.LeaderElection {
		f.standby = ctx
	}
	opened, err := a.openRuntimes(f.runtimes, config, f.runtimeOptions)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, opened.Close()) }()
	if err := ensureNamespace(ctx, config, f.manager.LeaderElectionNamespace); err != nil {
		return err
	}
	opts, err := f.options()
	if err != nil {
		return err
	}
	if err := a.acquireHost(ctx, config, f.log, opts.Host); err != nil {
		return err
	}
	f.endpoint.Namespace = opts.LeaderElectionNamespace
	mgr, err := assemble(config, opened, f.log, opts, f.endpoint)
	if err != nil {
		return err
	}
	return mgr.start(ctx)
}

// options returns the options of the manager. It returns an error if it cannot read the name of the host from the state directory.
func (f *managerFlags) options() (opts manager.Options, err error) {
	opts = f.manager
	opts.Namespaces, opts.Metrics, opts.LeaderElection = f.namespaces, f.metricsOptions(), opts.LeaderElection && !f.onlyHost()
	opts.Host, err = f.host()
	// A manager that runs only Pods does not check namespaces, because the cluster decides which Pods may run.
	if f.checkNamespaces && opts.Host.Name != "" {
		opts.PolicyNamespace = opts.LeaderElectionNamespace
	}
	if opts.Host.Name != "" {
		opts.Hooks = hook.Locate(f.stateDir, f.runAs)
	}
	return opts, err
}

// machineRuntimes are the runtime types that a manager with the runtime Host serves.
var machineRuntimes = []v1alpha1.RuntimeType{v1alpha1.RuntimeHost, v1alpha1.RuntimeTmux, v1alpha1.RuntimeDocker}

// clusterLease is the name of the Lease of managers that run no processes on their machine. They share one Lease, because they all serve the same objects.
const clusterLease = "cluster"

// onlyHost reports whether the manager runs processes only on this machine. In that case the lock of the state directory replaces leader election: managers
// with other state directories are other hosts, which work in parallel.
func (f *managerFlags) onlyHost() bool {
	return len(f.runtimes) > 0 && !slices.ContainsFunc(f.runtimes, func(name string) bool { return v1alpha1.RuntimeType(name) != v1alpha1.RuntimeHost })
}

// host returns the identity of this host among the hosts that use the API server.
func (f *managerFlags) host() (manager.Host, error) {
	host := manager.Host{Namespace: f.manager.LeaderElectionNamespace, Lease: clusterLease}
	for _, name := range f.runtimes {
		if kind := v1alpha1.RuntimeType(name); kind != v1alpha1.RuntimeHost {
			host.Runtimes = append(host.Runtimes, kind)
			continue
		}
		host.Runtimes = append(host.Runtimes, machineRuntimes...)
		var err error
		if host.Name, err = hosts.Name(f.stateDir); err != nil {
			return host, err
		}
		if host.Holder, err = hosts.NewHolder(f.stateDir); err != nil {
			return host, err
		}
		host.Lease = host.Name
	}
	return host, nil
}

// acquireHost takes the name of this host before the controllers start. It returns an error if another manager holds the name.
func (a *app) acquireHost(ctx context.Context, config *rest.Config, log logr.Logger, host manager.Host) error {
	if host.Name == "" {
		return nil
	}
	api, err := client.New(config, client.Options{Scheme: manager.Scheme()})
	if err != nil {
		return fmt.Errorf("take the name of this host: %w", err)
	}
	options := host.HostOptions()
	options.Client, options.Reader, options.Clock, options.Log = api, api, a.clock, log.WithName("hosts")
	return hosts.New(options).Acquire(ctx)
}

// validate returns an error if a flag has an invalid value.
func (f *managerFlags) validate() error {
	if format := logFormat(f.logFormat); format != logText && format != logJSON {
		return fmt.Errorf("--log-format must be text or json, not %q", f.logFormat)
	}
	if f.manager.Concurrency < 1 || f.manager.Concurrency > 1000 {
		return fmt.Errorf("--concurrency must be between 1 and 1000, not %d", f.manager.Concurrency)
	}
	if f.manager.PprofBindAddress != "0" {
		host, _, err := net.SplitHostPort(f.manager.PprofBindAddress)
		if ip := net.ParseIP(host); err != nil || ip == nil || !ip.IsLoopback() {
			return fmt.Errorf("--pprof-bind-address must be a loopback address with a port, such as 127.0.0.1:6060, not %q: profiles are served without authentication", f.manager.PprofBindAddress)
		}
	}
	return validNamespaces(f.namespaces)
}

// mostNamespaces bounds --namespaces, because each namespace needs a watch for each kind.
const mostNamespaces = 100

// validNamespaces returns an error if there are too many names, if a name is invalid, or if a name is listed twice.
func validNamespaces(namespaces []string) error {
	if len(namespaces) > mostNamespaces {
		return fmt.Errorf("--namespaces: %d namespaces exceed the limit of %d; leave it empty to serve all", len(namespaces), mostNamespaces)
	}
	for i, name := range namespaces {
		if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
			return fmt.Errorf("--namespaces: %q is not a valid namespace name: %s", name, problems[0])
		}
		if slices.Contains(namespaces[:i], name) {
			return fmt.Errorf("--namespaces: %q is listed twice", name)
		}
	}
	return nil
}

// metricsOptions returns how metrics are served: without authentication, or over TLS to callers that the API server authorizes.
func (f *managerFlags) metricsOptions() metricsserver.Options {
	options := f.manager.Metrics
	if f.metricsSecure {
		options.SecureServing = true
		options.FilterProvider = manager.ReviewMetrics
		// HTTP/2 brings no advantage to scrapers and increases the attack surface.
		options.TLSOpts = []func(*tls.Config){func(c *tls.Config) { c.MinVersion, c.NextProtos = tls.VersionTLS12, []string{"http/1.1"} }}
	}
	return options
}

// assembled is a manager with its endpoint, which is nil if disabled.
type assembled struct {
	ctrl.Manager
	served *endpoint.Server
}

// assemble creates a manager and its endpoint. An endpoint address of 0 disables the endpoint.
func assemble(config *rest.Config, on *backends, log logr.Logger, opts manager.Options, serve endpoint.Options) (*assembled, error) {
	opts.Runtimes, opts.Logger, opts.LanguageServers, opts.LanguageServersInPods = on.registry, log, on.servers, on.serversInPods
	opts.Presence = activity.New(opts.Clock)
	both := &assembled{}
	if opts.Host.Name != "" {
		opts.Host.Endpoint = both.endpoint
	}
	var err error
	if both.Manager, err = manager.New(config, opts); err != nil {
		return nil, err
	}
	if serve.Address == "0" {
		return both, nil
	}
	mgr := both.Manager
	serve.Host, serve.Presence = opts.Host.Name, opts.Presence
	serve.Client, serve.Reader, serve.Instances = mgr.GetClient(), mgr.GetAPIReader(), mgr.GetCache()
	serve.Runtimes, serve.Log = on.registry, log.WithName("endpoint")
	if both.served, err = endpoint.New(serve); err != nil {
		return nil, err
	}
	if err := mgr.Add(both.served); err != nil {
		return nil, errors.Join(fmt.Errorf("add the endpoint: %w", err), both.served.Close())
	}
	return both, nil
}

// endpoint returns the address that the Lease of the host publishes.
func (m *assembled) endpoint() hosts.Endpoint {
	if m.served == nil {
		return hosts.Endpoint{}
	}
	return m.served.Address()
}

// start runs the manager until the context is done.
func (m *assembled) start(ctx context.Context) error {
	err := m.Start(ctx)
	if m.served != nil {
		_ = m.served.Close() // the manager may have failed before it started the endpoint
	}
	return err
}

// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get;create
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

func ensureNamespace(ctx context.Context, config *rest.Config, name string) error {
	api, err := client.New(config, client.Options{})
	if err != nil {
		return fmt.Errorf("create namespace %s: %w", name, err)
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := api.Get(ctx, client.ObjectKeyFromObject(namespace), namespace); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read namespace %s: %w", name, err)
	} else if err == nil {
		return nil
	}
	namespace = &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := client.IgnoreAlreadyExists(api.Create(ctx, namespace)); err != nil {
		return fmt.Errorf("create namespace %s: %w", name, err)
	}
	return nil
}
