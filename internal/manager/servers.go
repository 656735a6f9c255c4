// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"context"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/eventqueue"
)

// languageRuntimes returns the runtimes of LanguageServers.
func languageRuntimes(mgr ctrl.Manager, opts Options) *runtime.Registry {
	base, pods := opts.Runtimes.For(""), runtime.Backend{
		Type: v1alpha1.RuntimePod, Missing: "This manager does not serve language servers in the runtime Pod.",
	}
	if opts.LanguageServers != nil {
		base = opts.LanguageServers
	}
	if opts.LanguageServersInPods != nil {
		pods.Runtime = opts.LanguageServersInPods
	}
	return runtime.NewRegistry(base, mgr.GetLogger().WithName("runtimes"), pods)
}

// waker forwards UIDs to a dispatcher, so that the source of a UID never waits for the cache.
type waker struct {
	*eventqueue.Queue

	dispatcher *process.Dispatcher
}

func newWaker(dispatcher *process.Dispatcher) *waker { return &waker{eventqueue.New(), dispatcher} }

// NeedLeaderElection returns true, so that the waker starts together with the controllers. The controllers begin by reconciling all objects, so earlier
// UIDs are not needed.
func (w *waker) NeedLeaderElection() bool { return true }

// Start forwards UIDs until the context is done.
func (w *waker) Start(ctx context.Context) error {
	go w.Run(ctx.Done())
	for {
		select {
		case <-ctx.Done():
			return nil
		case uid := <-w.C():
			w.dispatcher.Wake(ctx, uid)
		}
	}
}
