// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/hosts"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/tolerant"
)

// listKinds are the list kinds of the objects that have processes.
var listKinds = []string{"DevServerList", "InstanceList", "LanguageServerList", "StrategyRunList"}

// collector stops orphans: processes without an object, for example because the finalizer was removed by force or the API server lost its data. It lists
// the processes first and then reads the objects from the API server instead of the cache. In the opposite order, a process whose object was created
// between the two reads would look like an orphan.
type collector struct {
	runtimes *runtime.Registry
	hosts    *hosts.Hosts // nil if the manager is alone
	reader   client.Reader
	clock    clock.WithTicker
	log      logr.Logger
	interval time.Duration
	grace    time.Duration
	// namespaces are the namespaces whose objects can be read; empty means all. Processes of other namespaces are ignored, because the collector cannot determine
	// whether they have an object.
	namespaces []string

	wake chan struct{}
	// orphans is kept in memory only: after a restart of the manager, each orphan gets another grace period.
	orphans map[types.UID]*orphan
	// backoff is the time until the next sweep while orphans exist or sweeps fail. failing is true since the last sweep that succeeded.
	backoff time.Duration
	failing bool
}

// orphan is what the collector knows about one orphan.
type orphan struct {
	asked  time.Time      // when it was first asked to stop; zero if it was not
	sent   map[int64]bool // the incarnations that were asked to stop without an error
	phases []facts.Phase  // of its living incarnations, sorted
}

// pace is the minimum interval between two sweeps, and the interval after a change. It doubles with each sweep that changes nothing: up to the interval of
// all sweeps while an orphan exists, and up to maxRetry while sweeps fail.
const (
	pace     = 250 * time.Millisecond
	maxRetry = 30 * time.Second
)

func newCollector(opts Options, others *hosts.Hosts, reader client.Reader, log logr.Logger) *collector {
	return &collector{
		runtimes: opts.Runtimes, hosts: others, reader: reader, clock: opts.Clock, log: log,
		interval: opts.LeftoverInterval, grace: opts.LeftoverGrace, namespaces: opts.Namespaces,
		wake: make(chan struct{}, 1), orphans: map[types.UID]*orphan{}, backoff: pace,
	}
}

// NeedLeaderElection returns true, so that only the leader stops orphans.
func (c *collector) NeedLeaderElection() bool { return true }

// poke requests a sweep. The dispatcher calls it for an event whose UID has no object. It never blocks.
func (c *collector) poke(types.UID) {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Start sweeps for orphans until the context is done. The manager calls it after the caches have synced.
func (c *collector) Start(ctx context.Context) error {
	for {
		least, most := c.round(ctx)
		if !c.pause(ctx, least, nil) || !c.pause(ctx, most-least, c.wake) {
			return nil
		}
	}
}

// round sweeps once. It returns when to sweep again: after the time least if poke is called, otherwise after the time most. A failed sweep is not repeated
// sooner because of poke, and only the first of several failures is logged.
func (c *collector) round(ctx context.Context) (least, most time.Duration) {
	changed, err := c.sweep(ctx)
	if ctx.Err() != nil {
		return 0, 0
	}
	if changed || c.failing != (err != nil) {
		c.backoff = pace
	}
	wait := c.backoff
	c.backoff = min(2*c.backoff, max(c.interval, pace))
	switch {
	case err != nil:
		if !c.failing {
			c.log.Error(err, "Cannot check for orphaned processes; retrying")
		}
		wait = min(wait, maxRetry)
		least = wait
	case c.failing:
		c.log.Info("Can check for orphaned processes again")
	case len(c.orphans) == 0:
		wait = c.interval
	}
	c.failing = err != nil
	most = max(min(wait, c.untilKill()), pace)
	return max(min(least, most), pace), most
}

// untilKill returns the time until the next orphan is killed. It returns the interval of all sweeps if no orphan is to be killed.
func (c *collector) untilKill() time.Duration {
	next := c.interval
	for _, o := range c.orphans {
		if left := c.grace - c.clock.Since(o.asked); left > 0 && !o.asked.IsZero() {
			next = min(next, left)
		}
	}
	return next
}

// pause waits for d or for wake, and returns false if the context is done.
func (c *collector) pause(ctx context.Context, d time.Duration, wake <-chan struct{}) bool {
	timer := c.clock.NewTimer(max(d, 0))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C():
	case <-wake:
	}
	return ctx.Err() == nil
}

// sweep checks for orphans once. It reports whether anything has changed since the previous sweep: an orphan was found or is gone, or is in another phase.
func (c *collector) sweep(ctx context.Context) (changed bool, err error) {
	found, err := c.runtimes.List(ctx)
	if err != nil {
		return false, fmt.Errorf("list running processes: %w", err)
	}
	owned := map[types.UID]bool{}
	if len(found) > 0 {
		if owned, err = c.owned(ctx); err != nil {
			return false, err
		}
	}
	strangers := map[types.UID][]facts.Incarnation{}
	for _, incarnation := range found {
		if !owned[types.UID(incarnation.UID)] && serves(c.namespaces, incarnation) {
			strangers[types.UID(incarnation.UID)] = append(strangers[types.UID(incarnation.UID)], incarnation)
		}
	}
	for uid := range c.orphans {
		if strangers[uid] == nil {
			delete(c.orphans, uid)
			changed = true
		}
	}
	var errs []error
	for uid, incarnations := range strangers {
		moved, err := c.collect(ctx, uid, incarnations)
		errs = append(errs, err)
		changed = changed || moved
	}
	return changed, errors.Join(errs...)
}

// owned returns the UIDs of all existing objects, read from the API server instead of the cache. The value is false for an object that belongs to another host.
func (c *collector) owned(ctx context.Context) (map[types.UID]bool, error) {
	owned := map[types.UID]bool{}
	for _, kind := range listKinds {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
		if err := c.reader.List(ctx, list); err != nil {
			return nil, fmt.Errorf("read %s to find orphaned processes: %w", kind, err)
		}
		for i := range list.Items {
			elsewhere, err := c.elsewhere(ctx, strings.TrimSuffix(kind, "List"), &list.Items[i])
			if err != nil {
				return nil, err
			}
			owned[list.Items[i].UID] = !elsewhere
		}
	}
	return owned, nil
}

// elsewhere reports whether an object belongs to another host, so that its processes here are orphans. It returns false while the object is being moved away,
// because its reconciler then stops the process.
func (c *collector) elsewhere(ctx context.Context, kind string, object *metav1.PartialObjectMetadata) (bool, error) {
	self, label := c.hosts.Self(), object.Labels[v1alpha1.LabelHost]
	if self == "" || label == "" || label == self {
		return false, nil
	}
	whole := &unstructured.Unstructured{}
	whole.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
	err := c.reader.Get(ctx, client.ObjectKeyFromObject(object), whole)
	if tolerant.IsUndecodable(err) {
		return false, nil // its process is not an orphan as long as the object exists
	}
	if err != nil {
		return false, client.IgnoreNotFound(err)
	}
	holder, _, err := unstructured.NestedString(whole.Object, "status", "hostName")
	if err != nil {
		return false, fmt.Errorf("read status.hostName of %s %s/%s: %w", kind, object.Namespace, object.Name, err)
	}
	claim := lifecycle.HostClaim{Self: self, Label: whole.GetLabels()[v1alpha1.LabelHost], Lost: whole.GetAnnotations()[v1alpha1.AnnotationLostHost], Holder: holder}
	return whole.GetUID() == object.UID && claim.Decide() == lifecycle.HostLeave, nil
}

// collect takes the next step for one orphan: it stops the process, waits, kills the process, or removes its records. It does not signal incarnations whose
// state is unknown. It reports whether the orphan is new or gone, or is in another phase than before.
func (c *collector) collect(ctx context.Context, uid types.UID, incarnations []facts.Incarnation) (changed bool, err error) {
	backends, err := c.holders(ctx, uid)
	if err != nil {
		return false, err
	}
	o := c.orphans[uid]
	if o == nil {
		o = &orphan{sent: map[int64]bool{}}
		c.orphans[uid] = o
	}
	var phases []facts.Phase
	var errs []error
	for _, incarnation := range incarnations {
		if !incarnation.Alive() {
			continue
		}
		if incarnation.Adopted {
			c.log.Info("Releasing an adopted process whose object was deleted", "process", incarnation.Name, "uid", uid)
			return true, release(ctx, backends, uid) // an adopted process existed before Berth and is not stopped
		}
		phases = append(phases, incarnation.Phase)
		errs = append(errs, c.end(ctx, backends, incarnation, o))
	}
	slices.Sort(phases)
	changed = !slices.Equal(o.phases, phases)
	o.phases = phases
	if len(phases) > 0 {
		return changed, errors.Join(errs...)
	}
	if err := c.runtimes.Forget(ctx, uid); err != nil {
		return changed, fmt.Errorf("remove the records of an orphaned process: %w", err)
	}
	delete(c.orphans, uid)
	return true, nil
}

// end stops a living incarnation of an orphan, or kills it after its grace period.
func (c *collector) end(ctx context.Context, backends []runtime.Runtime, incarnation facts.Incarnation, o *orphan) error {
	uid, number, errs := types.UID(incarnation.UID), incarnation.Number, []error(nil)
	switch {
	case incarnation.Phase == facts.Unknown:
		// A process that cannot be identified must not be signaled.
		if !slices.Contains(o.phases, facts.Unknown) {
			c.log.Info("Cannot determine whether a process without an object is running; checking it again with back-off",
				"process", incarnation.Name, "uid", uid, "cause", incarnation.Message)
		}
	case !o.asked.IsZero() && c.clock.Since(o.asked) >= c.grace:
		for _, backend := range backends {
			errs = append(errs, backend.Kill(ctx, uid, number))
		}
	case !o.sent[number] || incarnation.StopDeferred:
		if o.asked.IsZero() {
			c.log.Info("Stopping a process without an object", "process", incarnation.Name, "uid", uid, "pid", incarnation.PID)
			o.asked = c.clock.Now()
		}
		for _, backend := range backends {
			errs = append(errs, backend.Stop(ctx, uid, number))
		}
		o.sent[number] = errors.Join(errs...) == nil
	}
	return errors.Join(errs...)
}

func release(ctx context.Context, backends []runtime.Runtime, uid types.UID) error {
	var errs []error
	for _, backend := range backends {
		if adoption := backend.Capabilities().Adoption; adoption != nil {
			errs = append(errs, adoption.Release(ctx, uid))
		}
	}
	return errors.Join(errs...)
}

// holders returns the backends that run processes of uid. If no backend finds the UID, although one listed it, holders returns all backends: a process that a
// backend lists but cannot observe must still be stopped, and Stop and Kill do nothing for an unknown UID.
func (c *collector) holders(ctx context.Context, uid types.UID) ([]runtime.Runtime, error) {
	backends, err := c.runtimes.Find(ctx, uid)
	if errors.Is(err, runtime.ErrNotFound) {
		return c.runtimes.All(), nil
	}
	return backends, err
}
