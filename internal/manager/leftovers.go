// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"context"
	"errors"
	"fmt"
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
)

// listKinds are the kinds whose objects have processes.
var listKinds = []string{"DevServerList", "InstanceList", "LanguageServerList", "StrategyRunList"}

// collector ends what runs without an object: the finalizer was taken off by force, or the API server lost its data.
// It trusts nothing but the API server itself, asked after the runtime was, so that a process is never older than the look at its object.
type collector struct {
	runtimes *runtime.Registry
	hosts    *hosts.Hosts // nil if the manager is alone
	reader   client.Reader
	clock    clock.WithTicker
	log      logr.Logger
	interval time.Duration
	grace    time.Duration
	// namespaces are those whose objects can be read; none means all. Whether processes of others have an object is not known here.
	namespaces []string

	wake chan struct{}
	// asked is when a leftover was asked to end. Losing it costs another grace period.
	asked map[types.UID]time.Time
}

// pace is how long it takes at least from one look to the next, and how soon to look again while a leftover is ending.
const pace = 250 * time.Millisecond

func newCollector(opts Options, others *hosts.Hosts, reader client.Reader, log logr.Logger) *collector {
	return &collector{
		runtimes: opts.Runtimes, hosts: others, reader: reader, clock: opts.Clock, log: log,
		interval: opts.LeftoverInterval, grace: opts.LeftoverGrace, namespaces: opts.Namespaces,
		wake: make(chan struct{}, 1), asked: map[types.UID]time.Time{},
	}
}

// NeedLeaderElection keeps a manager that does not lead from ending anything.
func (c *collector) NeedLeaderElection() bool { return true }

// poke asks for a look, because something happened to a UID without an object. It never blocks.
func (c *collector) poke(types.UID) {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Start looks for leftovers until the context ends. The manager calls it when the caches have synced.
func (c *collector) Start(ctx context.Context) error {
	for {
		wait := c.interval
		pending, err := c.sweep(ctx)
		if err != nil && ctx.Err() == nil {
			c.log.Error(err, "Looking for leftovers")
		}
		if pending || err != nil {
			wait = pace
		}
		if !c.pause(ctx, pace, nil) || !c.pause(ctx, wait-pace, c.wake) {
			return nil
		}
	}
}

// pause waits for a time or to be woken, and is false when the context has ended.
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

// sweep looks once; pending says that a leftover is still there.
func (c *collector) sweep(ctx context.Context) (pending bool, err error) {
	found, err := c.runtimes.List(ctx)
	if err != nil {
		return false, fmt.Errorf("list what runs: %w", err)
	}
	if len(found) == 0 {
		clear(c.asked)
		return false, nil
	}
	owned, err := c.owned(ctx)
	if err != nil {
		return false, err
	}
	strangers := map[types.UID][]facts.Incarnation{}
	for _, incarnation := range found {
		if !owned[types.UID(incarnation.UID)] && serves(c.namespaces, incarnation.Name) {
			strangers[types.UID(incarnation.UID)] = append(strangers[types.UID(incarnation.UID)], incarnation)
		}
	}
	for uid := range c.asked {
		if strangers[uid] == nil {
			delete(c.asked, uid)
		}
	}
	var errs []error
	for uid, incarnations := range strangers {
		gone, err := c.collect(ctx, uid, incarnations)
		errs = append(errs, err)
		pending = pending || !gone
	}
	return pending, errors.Join(errs...)
}

// owned reads the UIDs of all objects that there are, past the cache.
func (c *collector) owned(ctx context.Context) (map[types.UID]bool, error) {
	owned := map[types.UID]bool{}
	for _, kind := range listKinds {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
		if err := c.reader.List(ctx, list); err != nil {
			return nil, fmt.Errorf("read %s to tell what is a leftover: %w", kind, err)
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

// elsewhere reports whether an object belongs to another host, so that its processes here are orphans. An object that is being moved away is not: its
// reconciler stops the process.
func (c *collector) elsewhere(ctx context.Context, kind string, object *metav1.PartialObjectMetadata) (bool, error) {
	self, label := c.hosts.Self(), object.Labels[v1alpha1.LabelHost]
	if self == "" || label == "" || label == self {
		return false, nil
	}
	whole := &unstructured.Unstructured{}
	whole.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
	if err := c.reader.Get(ctx, client.ObjectKeyFromObject(object), whole); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	holder, _, err := unstructured.NestedString(whole.Object, "status", "hostName")
	if err != nil {
		return false, fmt.Errorf("read status.hostName of %s %s/%s: %w", kind, object.Namespace, object.Name, err)
	}
	claim := lifecycle.HostClaim{Self: self, Label: whole.GetLabels()[v1alpha1.LabelHost], Lost: whole.GetAnnotations()[v1alpha1.AnnotationLostHost], Holder: holder}
	return whole.GetUID() == object.UID && claim.Decide() == lifecycle.HostLeave, nil
}

// collect takes one leftover a step further: ask, wait, kill, forget. What cannot be told to live or not is left alone.
func (c *collector) collect(ctx context.Context, uid types.UID, incarnations []facts.Incarnation) (gone bool, err error) {
	asked, before := c.asked[uid]
	if !before {
		asked = c.clock.Now()
		c.asked[uid] = asked
	}
	overdue := c.clock.Since(asked) >= c.grace
	backend, err := c.runtimes.Find(ctx, uid)
	if errors.Is(err, runtime.ErrNotFound) {
		incarnations = nil // gone since they were listed
	} else if err != nil {
		return false, err
	}
	alive, failed := false, error(nil)
	for _, incarnation := range incarnations {
		if !incarnation.Alive() {
			continue
		}
		if adoption := backend.Capabilities().Adoption; adoption != nil && incarnation.Adopted {
			c.log.Info("Letting go of what was adopted by an object that is gone", "process", incarnation.Name, "uid", uid)
			return true, adoption.Release(ctx, uid) // it was there before, and is nobody's to end
		}
		alive = true
		switch {
		case incarnation.Phase == facts.Unknown:
			// Nothing may be signalled that cannot be identified.
		case overdue:
			failed = errors.Join(failed, backend.Kill(ctx, uid, incarnation.Number))
		case !before:
			c.log.Info("Ending a process without an object", "process", incarnation.Name, "uid", uid, "pid", incarnation.PID)
			failed = errors.Join(failed, backend.Stop(ctx, uid, incarnation.Number))
		}
	}
	if alive {
		return false, failed
	}
	if err := c.runtimes.Forget(ctx, uid); err != nil {
		return false, fmt.Errorf("forget a leftover: %w", err)
	}
	delete(c.asked, uid)
	return true, nil
}
