// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/docker"
	"github.com/berth-dev/berth/internal/runtime/host"
	"github.com/berth-dev/berth/internal/runtime/langserver"
	"github.com/berth-dev/berth/internal/runtime/tmux"
	"github.com/berth-dev/berth/internal/shim"
	"github.com/berth-dev/berth/internal/statedir"
)

// runtimeOptions configure the backends of a manager.
type runtimeOptions struct {
	stateDir, shim, lsp string
	image               string     // image that contains berth-lsp-pod; empty: the image of the manager's own Pod
	namespaces          []string   // namespaces whose Pods are watched; empty: all
	runAs               *shim.User // user that programs on this machine run as; nil: the user of the manager
	log                 logr.Logger
	pods                *inCluster      // nil without Pods; newRuntime takes ownership and closes it
	standby             context.Context // if set, newRuntime waits until no other manager uses the state directory, or this context ends
}

// machine holds the backends of this machine: processes, tmux sessions, Docker containers and language servers.
type machine struct {
	registry   *runtime.Registry
	host       *host.Host
	tmux       *tmux.Runtime // nil without tmux
	docker     *docker.Runtime
	servers    *langserver.Runtime
	*inCluster // nil without Pods
}

// Close closes all backends. It does not affect running processes.
func (m *machine) Close() error {
	var errs []error
	errs = append(errs, m.inCluster.Close())
	if m.docker != nil {
		errs = append(errs, m.docker.Close())
	}
	if m.tmux != nil {
		m.tmux.Close()
	}
	if m.servers != nil {
		m.servers.Close()
	}
	return errors.Join(append(errs, m.host.Close())...)
}

// Runtimes returns the backends.
func (m *machine) Runtimes() *runtime.Registry { return m.registry }

// LanguageServers returns the runtime of language servers on this machine.
func (m *machine) LanguageServers() *langserver.Runtime { return m.servers }

func newHostRuntime(opts runtimeOptions) (openedRuntimes, error) {
	if _, err := statedir.Make(opts.stateDir); err != nil {
		return nil, errors.Join(err, opts.pods.Close())
	}
	opened, err := host.New(host.Options{
		StateDir: filepath.Join(opts.stateDir, "host"), ShimPath: opts.shim, Logger: opts.log.WithName("host"),
		Standby: opts.standby, RunAs: opts.runAs,
	})
	if err != nil {
		return nil, errors.Join(err, opts.pods.Close())
	}
	m := &machine{host: opened, inCluster: opts.pods}
	if err := m.open(opts); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// open opens the backends other than the host.
func (m *machine) open(opts runtimeOptions) (err error) {
	m.servers, err = langserver.New(m.host, langserver.Options{
		Dir: filepath.Join(opts.stateDir, "lsp"), Program: opts.lsp, RunAs: opts.runAs, Logger: opts.log.WithName("lsp"),
	})
	if err != nil {
		return err
	}
	sessions, err := m.openTmux(opts)
	if err != nil {
		return err
	}
	// Docker does not need a running engine until an object uses it.
	m.docker, err = docker.New(docker.Options{Dir: filepath.Join(opts.stateDir, "docker"), Logger: opts.log.WithName("docker")})
	if err != nil {
		return err
	}
	members := []runtime.Backend{sessions, {Type: v1alpha1.RuntimeDocker, Runtime: m.docker}}
	if m.inCluster != nil {
		members = append(members, runtime.Backend{Type: v1alpha1.RuntimePod, Runtime: m.pods})
	}
	m.registry = runtime.NewRegistry(m.host, opts.log.WithName("runtimes"), members...)
	return nil
}

// openTmux opens the backend of tmux sessions. If tmux is not installed or not supported on this system, openTmux returns a placeholder without a runtime, and
// objects that need tmux report the reason.
func (m *machine) openTmux(opts runtimeOptions) (runtime.Backend, error) {
	opened, err := tmux.New(m.host, tmux.Options{
		Dir: filepath.Join(opts.stateDir, "tmux"), Shim: opts.shim, Logger: opts.log.WithName("tmux"),
	})
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, errors.ErrUnsupported) {
		return runtime.Backend{Type: v1alpha1.RuntimeTmux, Missing: err.Error()}, nil
	}
	if err != nil {
		return runtime.Backend{}, err
	}
	m.tmux = opened
	return runtime.Backend{Type: v1alpha1.RuntimeTmux, Runtime: opened}, nil
}

// podsOnly is the message for objects that do not select the runtime Pod, if the manager serves only Pods.
const podsOnly = "This manager serves only the runtime Pod (--runtimes=Pod). Recreate the object with spec.runtime {type: Pod, pod: {image: IMAGE}}, " +
	"or run berth manager on your machine."

// noRuntime is the message for objects of a manager without runtimes.
const noRuntime = "This manager was started without a runtime, so it runs no processes. Set --runtimes, " +
	"or run berth manager on your machine."

// clusterOnly holds the backends of a manager that runs nothing on its own machine.
type clusterOnly struct {
	registry *runtime.Registry
	*inCluster
}

// Runtimes returns the backends.
func (c *clusterOnly) Runtimes() *runtime.Registry { return c.registry }

// openRuntimes opens the backends with the given names, and returns an error for an unknown name. Without names, the manager runs no processes, and each object
// reports the message noRuntime.
func (a *app) openRuntimes(names []string, config *rest.Config, opts runtimeOptions) (openedRuntimes, error) {
	asked := map[v1alpha1.RuntimeType]bool{}
	for _, name := range names {
		kind := v1alpha1.RuntimeType(name)
		if kind != v1alpha1.RuntimeHost && kind != v1alpha1.RuntimePod {
			return nil, fmt.Errorf("--runtimes: unknown runtime %q; use %s, %s or both, or leave it empty to run no processes",
				name, v1alpha1.RuntimeHost, v1alpha1.RuntimePod)
		}
		asked[kind] = true
	}
	if asked[v1alpha1.RuntimePod] {
		var err error
		if opts.pods, err = openPods(config, opts); err != nil {
			return nil, err
		}
	}
	switch {
	case asked[v1alpha1.RuntimeHost]:
		return a.newRuntime(opts)
	case opts.pods != nil:
		pods := runtime.Backend{Type: v1alpha1.RuntimePod, Runtime: opts.pods.pods}
		return &clusterOnly{runtime.NewRegistry(runtime.NoRuntime{Reason: podsOnly}, opts.log.WithName("runtimes"), pods), opts.pods}, nil
	default:
		return &clusterOnly{registry: runtime.NewRegistry(runtime.NoRuntime{Reason: noRuntime}, opts.log)}, nil
	}
}
