// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/manager"
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
	image               string       // image that contains berth-lsp-pod; empty: the image of the manager's own Pod
	namespaces          []string     // namespaces whose Pods are watched; empty: all
	runAs               *shim.User   // user that programs on this machine run as; nil: the user of the manager
	cluster             *rest.Config // where Pods run; nil: no Pods
	log                 logr.Logger
	standby             context.Context // if set, newRuntime waits until no other manager uses the state directory, or this context ends
}

// backends are the backends that this program has opened and must close. The processes that they run outlive Close.
type backends struct {
	registry               *runtime.Registry
	servers, serversInPods manager.LanguageServers // nil if the manager does not run language servers there
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

func newHostRuntime(opts runtimeOptions) (*backends, error) {
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
	switch opened, err := tmux.New(processes, tmux.Options{Dir: filepath.Join(opts.stateDir, "tmux"), Shim: opts.shim, Logger: opts.log.WithName("tmux")}); {
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
