// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/docker"
	"github.com/berth-dev/berth/internal/runtime/host"
	"github.com/berth-dev/berth/internal/runtime/langserver"
	"github.com/berth-dev/berth/internal/runtime/pod"
	"github.com/berth-dev/berth/internal/runtime/tmux"
	"github.com/berth-dev/berth/internal/shim"
	"github.com/berth-dev/berth/internal/statedir"
)

// runtimeOptions configure the backends of a manager.
type runtimeOptions struct {
	stateDir, shim, lsp string
	runAsName           string       // name or UID of runAs
	image               string       // image that contains berth-lsp-pod; empty: the image of the manager's own Pod
	namespaces          []string     // namespaces whose Pods are watched; empty: all
	runAs               *shim.User   // user that programs on this machine run as; nil: the user of the manager
	cluster             *rest.Config // where Pods run; nil: no Pods
	log                 logr.Logger
	standby             context.Context // if set, newRuntime waits until no other manager uses the state directory, or this context ends
}

// addTo adds the flags of the state directory and the helper programs.
func (o *runtimeOptions) addTo(flags *pflag.FlagSet, stateDirHelp string) {
	flags.StringVar(&o.stateDir, "state-dir", defaultStateDir(), stateDirHelp)
	flags.StringVar(&o.shim, "shim", "", "path of berth-shim; default: the directory of this program, or PATH")
	flags.StringVar(&o.lsp, "lsp", "", "path of berth-lsp; default: the directory of this program, or PATH")
}

// backends are the backends that this program has opened and must close. The processes that they run outlive Close.
type backends struct {
	registry               *runtime.Registry
	servers, serversInPods runtime.Runtime // nil if the manager does not run language servers there
	closers                []func() error
}

// Close closes the backends, the newest first.
func (b *backends) Close() error {
	var errs []error
	for _, end := range slices.Backward(b.closers) {
		errs = append(errs, end())
	}
	return errors.Join(errs...)
}

// closes adds a backend whose Close returns no error.
func (b *backends) closes(end func()) {
	b.closers = append(b.closers, func() error { end(); return nil })
}

func openBackends(opts runtimeOptions) (*backends, error) {
	b := &backends{}
	if err := b.openAll(opts); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// openAll opens the backends of this machine and, if opts.cluster is set, those of the cluster.
func (b *backends) openAll(opts runtimeOptions) error {
	members, err := b.openPods(opts)
	if err != nil {
		return err
	}
	if _, err := statedir.Make(opts.stateDir); err != nil {
		return err
	}
	processes, err := host.New(host.Options{
		StateDir: filepath.Join(opts.stateDir, "host"), ShimPath: opts.shim, Logger: opts.log.WithName("host"),
		Standby: opts.standby, RunAs: opts.runAs,
	})
	if err != nil {
		return err
	}
	b.closers = append(b.closers, processes.Close)
	servers, err := langserver.New(processes, langserver.Options{
		Dir: filepath.Join(opts.stateDir, "lsp"), Program: opts.lsp, RunAs: opts.runAs, Logger: opts.log.WithName("lsp"),
	})
	if err != nil {
		return err
	}
	b.closes(servers.Close)
	b.servers = servers
	// If tmux is not installed or not supported on this system, objects that need tmux report the reason.
	sessions := runtime.Backend{Type: v1alpha1.RuntimeTmux}
	switch opened, err := tmux.New(processes, tmux.Options{Dir: filepath.Join(opts.stateDir, "tmux"), Shim: opts.shim, RunAs: opts.runAs, Logger: opts.log.WithName("tmux")}); {
	case err == nil:
		b.closes(opened.Close)
		sessions.Runtime = opened
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, errors.ErrUnsupported):
		sessions.Missing = err.Error()
	default:
		return err
	}
	// Docker does not need a running engine until an object uses it.
	containers, err := docker.New(docker.Options{Dir: filepath.Join(opts.stateDir, "docker"), Logger: opts.log.WithName("docker")})
	if err != nil {
		return err
	}
	b.closers = append(b.closers, containers.Close)
	members = append([]runtime.Backend{sessions, {Type: v1alpha1.RuntimeDocker, Runtime: containers}}, members...)
	b.registry = runtime.NewRegistry(processes, opts.log.WithName("runtimes"), members...)
	return nil
}

// podsOnly is the message for objects that do not select the runtime Pod, if the manager serves only Pods.
const podsOnly = "This manager serves only the runtime Pod (--runtimes=Pod). Recreate the object with spec.runtime {type: Pod, pod: {image: IMAGE}}, " +
	"or run berth manager on your machine."

// noRuntime is the message for objects of a manager without runtimes.
const noRuntime = "This manager was started without a runtime, so it runs no processes. Set --runtimes, " +
	"or run berth manager on your machine."

// openRuntimes opens the backends with the given names, and returns an error for an unknown name. Without names, the manager runs no processes, and each object
// reports the message noRuntime.
func (a *app) openRuntimes(names []string, config *rest.Config, opts runtimeOptions) (*backends, error) {
	onHost, reason := false, noRuntime
	for _, name := range names {
		switch v1alpha1.RuntimeType(name) {
		case v1alpha1.RuntimeHost:
			onHost = true
		case v1alpha1.RuntimePod:
			opts.cluster, reason = config, podsOnly
		default:
			return nil, fmt.Errorf("--runtimes: unknown runtime %q; use %s, %s or both, or leave it empty to run no processes",
				name, v1alpha1.RuntimeHost, v1alpha1.RuntimePod)
		}
	}
	if onHost {
		return a.newRuntime(opts)
	}
	b := &backends{}
	pods, err := b.openPods(opts)
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	b.registry = runtime.NewRegistry(runtime.NoRuntime{Reason: reason}, opts.log.WithName("runtimes"), pods...)
	return b, nil
}

// Environment variables that the manifests of the installation set for the manager, and the name of its container.
const (
	podNameVariable      = "POD_NAME"
	podNamespaceVariable = "POD_NAMESPACE"
	managerContainer     = "manager"
)

// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=pods/log,verbs=get
// +kubebuilder:rbac:groups="",resources=pods/attach,verbs=get;create
// +kubebuilder:rbac:groups="",resources=secrets,verbs=create;delete
// +kubebuilder:rbac:groups="",resources=persistentvolumeclaims,verbs=get;create
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get

// openPods opens the backends that run Pods and language servers in the cluster of the manager, unless opts.cluster is nil.
func (b *backends) openPods(opts runtimeOptions) ([]runtime.Backend, error) {
	if opts.cluster == nil {
		return nil, nil
	}
	config := rest.CopyConfig(opts.cluster)
	config.QPS = -1 // no client-side rate limit, as in the manager: the API server limits requests itself
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("connect to the Pods of the cluster: %w", err)
	}
	pods, err := pod.New(pod.Options{Client: api, Config: config, Namespaces: opts.namespaces, Logger: opts.log.WithName("pods")})
	if err != nil {
		return nil, err
	}
	b.closers = append(b.closers, pods.Close)
	servers, err := langserver.NewInPods(pods, langserver.PodOptions{
		Client: api, Logger: opts.log.WithName("lsp"),
		Image: func(ctx context.Context) (langserver.Image, error) { return multiplexerImage(ctx, api, opts.image) },
	})
	if err != nil {
		return nil, err
	}
	b.closes(servers.Close)
	b.serversInPods = servers
	return []runtime.Backend{{Type: v1alpha1.RuntimePod, Runtime: pods}}, nil
}

// multiplexerImage returns the image named by the flag, or else the image of the Pod of the manager itself. The nodes can pull that image, because the
// installation already uses it.
func multiplexerImage(ctx context.Context, api kubernetes.Interface, named string) (langserver.Image, error) {
	if named != "" {
		return langserver.Image{Name: named}, nil
	}
	name, namespace := os.Getenv(podNameVariable), os.Getenv(podNamespaceVariable)
	if name == "" || namespace == "" {
		return langserver.Image{}, errors.New("this manager does not run in a Pod, so it cannot use its own image for the multiplexer of a language server; " +
			"start it with --multiplexer-image")
	}
	own, err := api.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return langserver.Image{}, fmt.Errorf("find the image of this manager: %w", err)
	}
	i := max(0, slices.IndexFunc(own.Spec.Containers, func(c corev1.Container) bool { return c.Name == managerContainer }))
	return langserver.Image{Name: own.Spec.Containers[i].Image, PullPolicy: own.Spec.Containers[i].ImagePullPolicy}, nil
}

const runAsHelp = "user (name or UID) that runs programs on this machine, instead of the user of the manager; requires root"

// lookUpUser returns the user that programs run as, or nil if name is empty. It rejects root, because a manager without --run-as runs programs as root anyway.
// It returns an error unless the caller is root.
func lookUpUser(name string) (*shim.User, error) {
	if name == "" {
		return nil, nil
	}
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("--run-as %s: only root can run programs as another user; run berth as that user", name)
	}
	found, err := user.Lookup(name)
	if unknown := user.UnknownUserError(""); errors.As(err, &unknown) {
		found, err = user.LookupId(name)
	}
	if err != nil {
		return nil, fmt.Errorf("--run-as %s: %w", name, err)
	}
	groups, err := found.GroupIds()
	if err != nil {
		return nil, fmt.Errorf("--run-as %s: read the groups of the user: %w", name, err)
	}
	ids := make([]uint32, 0, 2+len(groups))
	for _, text := range append([]string{found.Uid, found.Gid}, groups...) {
		id, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("--run-as %s: ID %q is not a number", name, text)
		}
		ids = append(ids, uint32(id))
	}
	if ids[0] == 0 {
		return nil, fmt.Errorf("--run-as %s: the user is root; name another user", name)
	}
	return &shim.User{Name: found.Username, UID: ids[0], GID: ids[1], Groups: ids[2:], Home: found.HomeDir}, nil
}
