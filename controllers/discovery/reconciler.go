// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package discovery makes Instances of the tmux sessions and containers that are there already. It creates, and never changes or deletes: what an
// Instance names is its own, and who gets it where two name the same is decided in controllers/instance alone.
package discovery

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/consistency"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/hosts"
	"github.com/berth-dev/berth/internal/pattern"
	"github.com/berth-dev/berth/internal/runtime"
)

const (
	// defaultInterval and defaultTTL are the defaults of the API in seconds, for objects that were stored before a default was there.
	defaultInterval = 30
	defaultTTL      = 3600
	// awayRetry is how soon to look again for a runtime that did not answer.
	awayRetry = 5 * time.Second
)

// Reconciler looks for one InstanceDiscovery at a time.
type Reconciler struct {
	// Client reads from a cache with the indexes of Instances and writes; Reader reads past the cache.
	Client client.Client
	Reader client.Reader
	// Runtimes are the backends that find sessions and containers.
	Runtimes *runtime.Registry
	Recorder process.Recorder
	Clock    clock.PassiveClock
	// Hosts knows this host and the others; nil if the manager is alone. A discovery is about the sessions and containers of its host.
	Hosts *hosts.Hosts
	// Permission is checked before sessions and containers of this machine are listed; nil permits all namespaces.
	Permission *process.Permission

	promises promises
	patterns pattern.Cache
}

// +kubebuilder:rbac:groups=berth.dev,resources=instancediscoveries,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=berth.dev,resources=instancediscoveries/status,verbs=patch
// +kubebuilder:rbac:groups=berth.dev,resources=instances,verbs=get;list;watch;create

// pass is one look of one discovery.
type pass struct {
	discovery *v1alpha1.InstanceDiscovery
	now       time.Time
	// things are what was found, in the order of the status; entries say what becomes of each.
	things  []thing
	entries []v1alpha1.DiscoveredInstance
	adopted int32
	created []string
	trouble trouble
}

// Reconcile looks through the sources, creates what is missing, and writes what was found if that is something else than before.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	object := &v1alpha1.InstanceDiscovery{}
	if err := r.Client.Get(ctx, req.NamespacedName, object); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !object.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil
	}
	if serve, err := r.Hosts.Claim(ctx, r.Client, object); err != nil {
		if err = consistency.StaleOr(err, "set the label of this host"); errors.Is(err, consistency.ErrStale) {
			return ctrl.Result{RequeueAfter: consistency.RetryAfter}, nil
		}
		return ctrl.Result{}, fmt.Errorf("instancediscoveries/%s: %w", req, err)
	} else if !serve {
		return ctrl.Result{}, nil
	}
	p := &pass{discovery: object, now: r.Clock.Now().Truncate(time.Microsecond)}
	for _, step := range []func(context.Context, *pass) error{r.look, r.settle, r.write} {
		err := step(ctx, p)
		if errors.Is(err, consistency.ErrStale) {
			return ctrl.Result{RequeueAfter: consistency.RetryAfter}, nil
		}
		if err != nil {
			return ctrl.Result{}, fmt.Errorf("instancediscoveries/%s: %w", req, err)
		}
	}
	return ctrl.Result{RequeueAfter: p.again()}, nil
}

// stopped says that nothing is looked for.
func (p *pass) stopped() bool { return p.discovery.Spec.State == v1alpha1.DiscoveryStopped }

// again says when to look again; 0 means when something changes.
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

// confirm makes sure that the discovery is as it was read: nothing is created for one that has changed or gone.
func (r *Reconciler) confirm(ctx context.Context, object *v1alpha1.InstanceDiscovery) error {
	now := &v1alpha1.InstanceDiscovery{}
	if err := r.Reader.Get(ctx, client.ObjectKeyFromObject(object), now); err != nil {
		return consistency.StaleOr(err, "read the discovery again")
	}
	if now.UID != object.UID || now.Generation != object.Generation || !now.DeletionTimestamp.IsZero() {
		return consistency.ErrStale
	}
	return nil
}
