// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hosts lets several managers serve one API server. Each host has a name, which is stored in its state directory, and a Lease that its manager renews.
// A host whose Lease is renewed is said to report. From the Leases a manager learns which other hosts report and which runtimes they serve.
// internal/lifecycle decides which host runs an object.
package hosts

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

const (
	// leasePrefix is the prefix of the names of Leases.
	leasePrefix = "berth-host-"
	// annotationRuntimes lists the runtimes that the manager of the host serves.
	annotationRuntimes = "berth.dev/runtimes"
	// Duration is how long a host counts as reporting after it renewed its Lease.
	Duration = 40 * time.Second
	// Interval is how often a manager renews its own Lease and reads the others.
	Interval = 10 * time.Second
	// renewalCheck is how often a manager compares the time of its last renewal with the wall clock.
	renewalCheck = time.Second
)

// Options describe this host.
type Options struct {
	// Name is the result of the function Name; empty for a manager that runs no processes on a machine.
	Name string
	// Lease is the name of the host in its Lease; empty means Name. A manager without a host name needs a Lease name to report that it serves Pods.
	Lease string
	// Runtimes are the types that this manager serves.
	Runtimes []v1alpha1.RuntimeType
	// Holder identifies this start of the manager. The zero value means that all managers with this name count as one.
	Holder Holder
	// Endpoint returns where this manager serves logs and terminals. Optional. Start calls it at each renewal.
	Endpoint func() Endpoint
	// Namespace is where the Leases are. It must exist.
	Namespace string
	// Client writes the Lease of this host. Reader reads all Leases from the API server, not the cache.
	Client client.Client
	Reader client.Reader
	Clock  clock.WithTicker
	Log    logr.Logger
}

// Hosts holds what this manager knows about its own host and the other hosts. A nil *Hosts means that there is only one manager: it serves all objects and
// labels none with a host.
type Hosts struct {
	options Options
	held    bool      // the Lease has named this start of the manager; used only by Start
	wrote   types.UID // of the Lease that Start last wrote

	mu     sync.Mutex
	read   bool // the Leases were read at least once
	leases map[string]lease
}

// lease is what this manager observed of another host.
type lease struct {
	renewed  metav1.MicroTime
	since    time.Time // when this manager first observed that renewal, by its own clock, because the clocks of two machines differ
	runtimes []string
}

// New returns a Hosts that does not know other hosts yet. It learns about them while Start runs.
func New(options Options) *Hosts {
	if options.Lease == "" {
		options.Lease = options.Name
	}
	return &Hosts{options: options, leases: map[string]lease{}}
}

// Self returns the name of this host; empty if there is only one manager, or if this manager runs no processes on a machine.
func (h *Hosts) Self() string {
	if h == nil {
		return ""
	}
	return h.options.Name
}

// Reports reports whether the manager of a host renewed its Lease within Duration; for the host of this manager, it always returns true. known is false
// while the Leases have not been read.
func (h *Hosts) Reports(host string) (reports, known bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if host == h.options.Lease {
		return true, true
	}
	return h.fresh(h.leases[host]), h.read
}

// Served reports whether another host, one that renews its Lease, serves a runtime. known is false while the Leases have not been read.
func (h *Hosts) Served(runtime v1alpha1.RuntimeType) (served, known bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for host, seen := range h.leases {
		if host != h.options.Lease && h.fresh(seen) && slices.Contains(seen.runtimes, string(runtime)) {
			return true, true
		}
	}
	return false, h.read
}

func (h *Hosts) fresh(seen lease) bool {
	return !seen.since.IsZero() && h.options.Clock.Since(seen.since) < Duration
}

// NeedLeaderElection returns true, because a manager that does not lead serves nothing.
func (h *Hosts) NeedLeaderElection() bool { return true }

// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,verbs=get;list;create;update

// Start renews the Lease of this host and reads the others until the context ends. It returns an error if another manager takes the name of this host.
func (h *Hosts) Start(ctx context.Context) error {
	ticker := h.options.Clock.NewTicker(renewalCheck)
	defer ticker.Stop()
	var renewing, reading streak
	for {
		began := h.options.Clock.Now()
		err := h.report(ctx)
		if errors.Is(err, errHeld) {
			return err
		}
		if renewing.begins(err) && ctx.Err() == nil {
			h.options.Log.Error(err, "Cannot renew the Lease of this host; other managers will report its objects as unavailable; retrying", "host", h.options.Lease)
		}
		if err := h.look(ctx); reading.begins(err) && ctx.Err() == nil {
			h.options.Log.Error(err, "Cannot read the Leases of other hosts; retrying")
		}
		if !h.awaitRenewal(ctx, ticker, began) {
			h.release(ctx)
			return nil
		}
	}
}

// awaitRenewal waits until the Lease that was last renewed at a time has to be renewed. After a step of the wall clock that is immediately, because commands
// compare the time in the Lease with the wall clock. awaitRenewal returns false if the context has ended.
func (h *Hosts) awaitRenewal(ctx context.Context, ticker clock.Ticker, last time.Time) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-ticker.C():
		}
		// Without Round, the difference would be that of the monotonic clock.
		if age := h.options.Clock.Now().Round(0).Sub(last.Round(0)); age < 0 || age >= Interval {
			return true
		}
	}
}

// streak is whether the last call has failed.
type streak bool

// begins records the result of a call. It reports whether the call has failed and the call before has not, so that each outage is logged once.
func (s *streak) begins(err error) bool {
	first := err != nil && !bool(*s)
	*s = err != nil
	return first
}

// identity returns the holder in the Lease of this host.
func (h *Hosts) identity() string {
	return strings.TrimSuffix(h.options.Lease+"_"+h.options.Holder.Start, "_")
}

// report renews the Lease of this host, and creates it if it was deleted. It returns errHeld if another start of a manager has replaced this one in the Lease. A
// Lease that another account has created after the deletion of the previous one is overwritten: creating a Lease needs fewer permissions than updating it.
func (h *Hosts) report(ctx context.Context) error {
	object, missing, err := h.ownLease(ctx)
	if err != nil {
		return err
	}
	holder := holderOf(object)
	if h.held && object.UID == h.wrote && h.options.Holder.Start != "" && holder.Start != "" && holder.Start != h.identity() {
		return h.heldBy(holder, "has lost it to that manager")
	}
	if err = h.write(ctx, object, missing); err == nil {
		h.held, h.wrote = true, object.UID
	}
	return err
}

// ownLease returns the Lease of this host, and whether it is missing.
func (h *Hosts) ownLease(ctx context.Context) (object *coordinationv1.Lease, missing bool, err error) {
	key := client.ObjectKey{Namespace: h.options.Namespace, Name: leasePrefix + h.options.Lease}
	object = &coordinationv1.Lease{}
	if err = h.options.Reader.Get(ctx, key, object); client.IgnoreNotFound(err) != nil {
		return nil, false, fmt.Errorf("read Lease %s: %w", key, err)
	}
	object.Namespace, object.Name = key.Namespace, key.Name
	return object, err != nil, nil
}

// write writes the Lease of this host, with an optimistic lock.
func (h *Hosts) write(ctx context.Context, object *coordinationv1.Lease, missing bool) error {
	object.Labels = map[string]string{v1alpha1.LabelHost: h.options.Lease}
	object.Annotations = map[string]string{annotationRuntimes: join(h.options.Runtimes)}
	if own := h.options.Holder; own.Directory != "" {
		object.Annotations[annotationDirectory], object.Annotations[annotationInode] = own.Directory, strconv.FormatUint(own.Inode, 10)
	}
	if h.options.Endpoint != nil {
		served := h.options.Endpoint()
		object.Annotations[annotationEndpoint], object.Annotations[annotationAuthority] = served.URL, string(served.Authority)
	}
	object.Spec = coordinationv1.LeaseSpec{
		HolderIdentity:       ptr.To(h.identity()),
		LeaseDurationSeconds: ptr.To(int32(Duration / time.Second)),
		RenewTime:            ptr.To(metav1.NewMicroTime(h.options.Clock.Now())),
	}
	var err error
	if missing {
		err = h.options.Client.Create(ctx, object)
	} else {
		err = h.options.Client.Update(ctx, object)
	}
	if err != nil {
		return fmt.Errorf("renew Lease %s: %w", client.ObjectKeyFromObject(object), err)
	}
	return nil
}

// look reads the Leases of all hosts.
func (h *Hosts) look(ctx context.Context) error {
	list := &coordinationv1.LeaseList{}
	if err := h.options.Reader.List(ctx, list, client.InNamespace(h.options.Namespace), client.HasLabels{v1alpha1.LabelHost}); err != nil {
		return fmt.Errorf("list Leases in namespace %s: %w", h.options.Namespace, err)
	}
	now := h.options.Clock.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	before := h.leases
	h.leases, h.read = make(map[string]lease, len(list.Items)), true
	for i := range list.Items {
		host, renewed := list.Items[i].Labels[v1alpha1.LabelHost], ptr.Deref(list.Items[i].Spec.RenewTime, metav1.MicroTime{})
		seen, known := before[host]
		if !known || !seen.renewed.Equal(&renewed) {
			seen = lease{renewed: renewed, since: now}
		}
		if !known && now.Sub(renewed.Time) > Duration {
			seen.since = time.Time{} // an expired Lease: the host counts as reporting only after the next renewal
		}
		seen.runtimes = strings.Split(list.Items[i].Annotations[annotationRuntimes], ",")
		h.leases[host] = seen
	}
	return nil
}

func join(runtimes []v1alpha1.RuntimeType) string {
	names := make([]string, len(runtimes))
	for i, runtime := range runtimes {
		names[i] = string(runtime)
	}
	return strings.Join(names, ",")
}
