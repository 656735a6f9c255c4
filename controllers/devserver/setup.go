// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/owner"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/devproxy"
	"github.com/berth-dev/berth/internal/probe"
	"github.com/berth-dev/berth/internal/runtime"
)

// +kubebuilder:rbac:groups=berth.dev,resources=devservers,verbs=get;list;watch;patch;delete
// +kubebuilder:rbac:groups=berth.dev,resources=devservers/status,verbs=patch
// +kubebuilder:rbac:groups=berth.dev,resources=devservers/finalizers,verbs=update
// +kubebuilder:rbac:groups=berth.dev,resources=instances,verbs=get;list;watch

// Options configures the controller of DevServers. The zero value selects the defaults.
type Options struct {
	// Ports is the range for allocated ports. The zero value selects DefaultRange.
	Ports Range
	// Front configures how proxies hold requests.
	Front devproxy.Options
}

// Setup registers the controller of DevServers with the manager.
func Setup(mgr ctrl.Manager, deps process.Dependencies) error {
	if err := mgr.GetFieldIndexer().IndexField(context.Background(), &v1alpha1.DevServer{}, indexPort, byPort); err != nil {
		return fmt.Errorf("index DevServers by port: %w", err)
	}
	wake := func(uid types.UID) { deps.Dispatcher.Wake(context.Background(), uid) }
	kind, err := New(mgr.GetClient(), mgr.GetAPIReader(), deps.Runtimes, deps.Clock, Options{}, wake)
	if err != nil {
		return err
	}
	kind.permission = deps.Permission
	if err := mgr.Add(kind.Probes()); err != nil {
		return fmt.Errorf("add the probes of DevServers: %w", err)
	}
	if err := mgr.Add(kind.proxies); err != nil {
		return fmt.Errorf("add the proxies of DevServers: %w", err)
	}
	return process.Setup(mgr, kind, deps, func(b *builder.Builder) *builder.Builder {
		if deps.Runtimes.Has(v1alpha1.RuntimePod) {
			b = b.Owns(&corev1.Service{})
		}
		return contested.Watch(b, kind.client, &v1alpha1.DevServer{})
	})
}

// New returns the kind. cache must have the index of ports that Setup adds; reader reads from the API server. When a probe has a new result, the kind calls wake
// with the UID of the object, so that the object is reconciled; wake must not block. A caller other than Setup must run what Probes returns; the kind then has
// no proxies. New returns an error if options.Ports is invalid.
func New(cache client.Client, reader client.Reader, runtimes *runtime.Registry, now clock.PassiveClock, options Options, wake func(types.UID)) (*Kind, error) {
	if options.Ports == (Range{}) {
		options.Ports = DefaultRange
	}
	if err := options.Ports.validate(); err != nil {
		return nil, err
	}
	if now == nil {
		now = clock.RealClock{}
	}
	timers, ok := now.(clock.Clock)
	if !ok {
		timers = clock.RealClock{}
	}
	kind := &Kind{
		client: cache, reader: reader, clock: now, timers: timers, ports: options.Ports,
		owners:  owner.Setter{Client: cache, Reader: reader},
		probes:  probe.NewManager(timers, wake),
		proxies: devproxy.New(options.Front),
		network: network{free: bindable, answers: answers, resolve: resolve},
	}
	here := runtimes.For("").Capabilities()
	kind.inspector, kind.logs = here.Inspection, here.Logs
	return kind, nil
}

// Probes returns the Runnable that runs the probes.
func (k *Kind) Probes() *probe.Manager { return k.probes }
