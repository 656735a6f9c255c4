// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package discovery creates Instances for existing tmux sessions and containers. It never changes or deletes an Instance. If two Instances name the same
// session or container, controllers/instance decides which of them gets it.
package discovery

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/arbitration"
	"github.com/berth-dev/berth/controllers/consistency"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/hosts"
	"github.com/berth-dev/berth/internal/runtime"
)

const (
	// defaultInterval and defaultTTL are the defaults of the API, in seconds. They are used for objects that were stored before the API had these fields.
	defaultInterval = 30
	defaultTTL      = 3600
	// awayRetry is how soon to retry a runtime that did not respond.
	awayRetry = 5 * time.Second
)

// Reconciler reconciles InstanceDiscoveries.
type Reconciler struct {
	// Client reads from a cache with the indexes of Instances, and writes. Reader reads from the API server.
	Client client.Client
	Reader client.Reader
	// Runtimes are the backends that find sessions and containers.
	Runtimes *runtime.Registry
	Recorder process.Recorder
	Clock    clock.PassiveClock
	// Hosts identifies this host and the others; nil if there is a single manager. A discovery covers the sessions and containers of its own host.
	Hosts *hosts.Hosts
	// Permission is checked before sessions and containers of this machine are listed; nil permits all namespaces.
	Permission *process.Permission

	// reserved holds the sessions and containers for which an Instance was created that the cache may not contain yet. It prevents two discoveries in different
	// namespaces from both creating one; without it, the younger Instance would get the condition Conflict.
	reserved arbitration.Reservations[string, types.NamespacedName]
}

// +kubebuilder:rbac:groups=berth.dev,resources=instancediscoveries,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=berth.dev,resources=instancediscoveries/status,verbs=patch
// +kubebuilder:rbac:groups=berth.dev,resources=instances,verbs=get;list;watch;create

// pass holds the state of one reconcile.
type pass struct {
	discovery *v1alpha1.InstanceDiscovery
	now       time.Time
	// candidates are the results of the search, in the order of the status. entries has the outcome for the candidate with the same index.
	candidates []candidate
	entries    []v1alpha1.DiscoveredInstance
	adopted    int32
	created    []string
	trouble    sourceErrors
}

// Reconcile searches the sources, creates missing Instances, and writes the status if it has changed.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	object := &v1alpha1.InstanceDiscovery{}
	if err := r.Client.Get(ctx, req.NamespacedName, object); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !object.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil
	}
	if serve, err := r.Hosts.Claim(ctx, r.Client, object); err != nil {
		return consistency.Result("instancediscoveries/"+req.String(), consistency.StaleOr(err, "set the host label"))
	} else if !serve {
		return ctrl.Result{}, nil
	}
	p := &pass{discovery: object, now: r.Clock.Now().Truncate(time.Microsecond)}
	for _, step := range []func(context.Context, *pass) error{r.search, r.settle, r.write} {
		if err := step(ctx, p); err != nil {
			return consistency.Result("instancediscoveries/"+req.String(), err)
		}
	}
	return ctrl.Result{RequeueAfter: p.again()}, nil
}

// stopped reports whether the discovery is stopped.
func (p *pass) stopped() bool { return p.discovery.Spec.State == v1alpha1.DiscoveryStopped }

// again returns how long to wait before the next search; 0 means until the discovery changes.
func (p *pass) again() time.Duration {
	interval := time.Duration(ptr.Deref(p.discovery.Spec.IntervalSeconds, defaultInterval)) * time.Second
	switch {
	case p.stopped():
		return 0
	case len(p.trouble.away) > 0:
		return min(interval, awayRetry)
	}
	return interval
}

// confirm returns ErrStale if the discovery was deleted, or if its spec has changed, since it was read. It is called before Instances are created.
func (r *Reconciler) confirm(ctx context.Context, object *v1alpha1.InstanceDiscovery) error {
	now := &v1alpha1.InstanceDiscovery{}
	if err := r.Reader.Get(ctx, client.ObjectKeyFromObject(object), now); err != nil {
		return consistency.StaleOr(err, "read the InstanceDiscovery again")
	}
	if now.UID != object.UID || now.Generation != object.Generation || !now.DeletionTimestamp.IsZero() {
		return consistency.ErrStale
	}
	return nil
}
