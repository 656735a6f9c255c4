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
	"github.com/berth-dev/berth/internal/runtime/none"
)

// setupLanguageServers registers the controller of the kind that has runtimes of its own.
func setupLanguageServers(mgr ctrl.Manager, deps process.Dependencies, opts Options) error {
	servers := languageServers{Runtime: runtime.Backend(deps.Runtime, "")}
	if opts.LanguageServers != nil {
		servers.Runtime = opts.LanguageServers
	}
	if opts.LanguageServersInPods != nil {
		servers.pods = opts.LanguageServersInPods
	}
	for _, telling := range []LanguageServers{opts.LanguageServers, opts.LanguageServersInPods} {
		if telling == nil {
			continue
		}
		waker := newWaker(deps.Dispatcher)
		if err := mgr.Add(waker); err != nil {
			return fmt.Errorf("add the parts of the manager: %w", err)
		}
		telling.OnChange(waker.tell)
	}
	deps.Runtime = servers
	return languageserver.Setup(mgr, deps)
}

// languageServers is where language servers run that name no runtime, and besides where those run that ask for a Pod.
type languageServers struct {
	runtime.Runtime
	pods runtime.Runtime // nil without Pods
}

var _ runtime.Backends = languageServers{}

// For implements runtime.Backends.
func (s languageServers) For(kind v1alpha1.RuntimeType) runtime.Runtime {
	switch {
	case kind == "" || kind == v1alpha1.RuntimeHost:
		return s.Runtime
	case kind == v1alpha1.RuntimePod && s.pods != nil:
		return s.pods
	default:
		return none.Without{Runtime: s.Runtime, Why: "This manager was started without language servers in the runtime " + string(kind) + "."}
	}
}
