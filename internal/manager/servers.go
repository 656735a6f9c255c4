// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"fmt"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/languageserver"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/runtime"
)

// setupLanguageServers registers the controller of LanguageServers, which have their own runtimes.
func setupLanguageServers(mgr ctrl.Manager, deps process.Dependencies, opts Options) error {
	base, pods := deps.Runtimes.For(""), runtime.Backend{
		Type: v1alpha1.RuntimePod, Missing: "This manager does not serve language servers in the runtime Pod.",
	}
	if opts.LanguageServers != nil {
		base = opts.LanguageServers
	}
	if opts.LanguageServersInPods != nil {
		pods.Runtime = opts.LanguageServersInPods
	}
	for _, telling := range []LanguageServers{opts.LanguageServers, opts.LanguageServersInPods} {
		if telling == nil {
			continue
		}
		waker := newWaker(deps.Dispatcher)
		if err := mgr.Add(waker); err != nil {
			return fmt.Errorf("add controllers and servers to the manager: %w", err)
		}
		telling.OnChange(waker.Add)
	}
	deps.Runtimes = runtime.NewRegistry(base, mgr.GetLogger().WithName("runtimes"), pods)
	return languageserver.Setup(mgr, deps)
}
