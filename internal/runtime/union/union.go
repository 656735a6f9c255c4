// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package union makes one runtime of several, for those who know a UID and not where it runs: the endpoint of logs and terminals, the collector of
// leftovers, the end of berth up. Who knows the object asks its backend itself, through For.
package union

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/none"
)

// Member is one backend of the union. Without a Runtime, Missing says why there is none, for the people whose objects want it.
type Member struct {
	Type    v1alpha1.RuntimeType
	Runtime runtime.Runtime
	Missing string
}

// Union is one runtime made of a base, where processes run that choose nothing, and of others, which are asked first: they may hold what they run
// as processes of the base. Make one with New.
type Union struct {
	base    runtime.Runtime
	others  []Member
	missing map[v1alpha1.RuntimeType]string
	log     logr.Logger

	events  chan types.UID
	end     context.CancelFunc
	readers sync.WaitGroup
}

var (
	_ runtime.Runtime    = (*Union)(nil)
	_ runtime.Inspector  = (*Union)(nil)
	_ runtime.Logger     = (*Union)(nil)
	_ runtime.Attacher   = (*Union)(nil)
	_ runtime.Keyboard   = (*Union)(nil)
	_ runtime.Releaser   = (*Union)(nil)
	_ runtime.Watcher    = (*Union)(nil)
	_ runtime.Screen     = (*Union)(nil)
	_ runtime.Foreground = (*Union)(nil)
	_ runtime.Census     = (*Union)(nil)
)

// New reads the events of all of them from now on, until Close.
func New(base runtime.Runtime, log logr.Logger, others ...Member) *Union {
	ctx, end := context.WithCancel(context.Background())
	u := &Union{base: base, log: log, missing: map[v1alpha1.RuntimeType]string{}, events: make(chan types.UID), end: end}
	for _, member := range others {
		if member.Runtime == nil {
			u.missing[member.Type] = member.Missing
			continue
		}
		u.others = append(u.others, member)
	}
	for _, backend := range u.all() {
		u.readers.Go(func() { u.forward(ctx, backend.Events()) })
	}
	return u
}

// Close ends the reading of events. The backends stay open: who made them closes them.
func (u *Union) Close() {
	u.end()
	u.readers.Wait()
}

// For gives the backend of that type, and the base for Host and for no type. In place of one that is not there it gives the base, which then starts
// nothing (runtime.Disabled) and still ends what it holds.
func (u *Union) For(kind v1alpha1.RuntimeType) runtime.Runtime {
	for _, member := range u.others {
		if member.Type == kind {
			return member.Runtime
		}
	}
	if kind == "" || kind == v1alpha1.RuntimeHost {
		return u.base
	}
	why, known := u.missing[kind]
	if !known {
		why = "This manager was started without the runtime " + string(kind) + "."
	}
	return none.Without{Runtime: u.base, Why: why}
}

// OnChange sets who is told the UIDs that something happened to in backends that tell besides Events. It must not block.
func (u *Union) OnChange(wake func(types.UID)) {
	for _, backend := range u.all() {
		if telling, tells := backend.(interface{ OnChange(func(types.UID)) }); tells {
			telling.OnChange(wake)
		}
	}
}

// Events implements runtime.Runtime with those of all.
func (u *Union) Events() <-chan types.UID { return u.events }

func (u *Union) forward(ctx context.Context, events <-chan types.UID) {
	for {
		select {
		case <-ctx.Done():
			return
		case uid, open := <-events:
			if !open {
				return
			}
			select {
			case u.events <- uid:
			case <-ctx.Done():
				return
			}
		}
	}
}

// all gives the backends in the order in which they are asked.
func (u *Union) all() []runtime.Runtime {
	all := make([]runtime.Runtime, 0, len(u.others)+1)
	for _, member := range u.others {
		all = append(all, member.Runtime)
	}
	return append(all, u.base)
}

// Start implements runtime.Runtime: what chooses nothing starts in the base.
func (u *Union) Start(ctx context.Context, p runtime.Process) error { return u.base.Start(ctx, p) }

// Stop implements runtime.Runtime, where the UID is found.
func (u *Union) Stop(ctx context.Context, uid types.UID, incarnation int64) error {
	return u.where(ctx, uid, func(r runtime.Runtime) error { return r.Stop(ctx, uid, incarnation) })
}

// Kill implements runtime.Runtime, where the UID is found.
func (u *Union) Kill(ctx context.Context, uid types.UID, incarnation int64) error {
	return u.where(ctx, uid, func(r runtime.Runtime) error { return r.Kill(ctx, uid, incarnation) })
}

// Forget implements runtime.Runtime, where the UID is found.
func (u *Union) Forget(ctx context.Context, uid types.UID) error {
	return u.where(ctx, uid, func(r runtime.Runtime) error { return r.Forget(ctx, uid) })
}

// where does it in the backend that has the UID. Where none has an incarnation of it, one may still have what was made for it and never ran: all are
// told, and to those that have nothing it is nothing.
func (u *Union) where(ctx context.Context, uid types.UID, do func(runtime.Runtime) error) error {
	backend, _, err := u.find(ctx, uid)
	if errors.Is(err, runtime.ErrNotFound) {
		var errs []error
		for _, backend := range u.all() {
			errs = append(errs, do(backend))
		}
		return errors.Join(errs...)
	}
	if err != nil {
		return err
	}
	return do(backend)
}

// find asks one after the other who has the UID. A backend that does not answer hides only what no other has.
func (u *Union) find(ctx context.Context, uid types.UID) (runtime.Runtime, []facts.Incarnation, error) {
	var unasked []error
	for _, backend := range u.all() {
		found, err := backend.Observe(ctx, uid)
		if err != nil {
			unasked = append(unasked, err)
			continue
		}
		if len(found) > 0 {
			return backend, found, nil
		}
	}
	if len(unasked) > 0 {
		return nil, nil, fmt.Errorf("find where %s runs: %w", uid, errors.Join(unasked...))
	}
	return nil, nil, runtime.ErrNotFound
}

// Observe implements runtime.Runtime.
func (u *Union) Observe(ctx context.Context, uid types.UID) ([]facts.Incarnation, error) {
	_, found, err := u.find(ctx, uid)
	if errors.Is(err, runtime.ErrNotFound) {
		return nil, nil
	}
	return found, err
}

// List implements runtime.Runtime. What a backend that does not answer has is not in it: whoever ends leftovers sees it the next time.
func (u *Union) List(ctx context.Context) ([]facts.Incarnation, error) {
	list, err := u.base.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, member := range u.others {
		more, err := member.Runtime.List(ctx)
		if err != nil {
			u.log.V(1).Info("A runtime cannot be asked what it has", "type", member.Type, "error", err.Error())
			continue
		}
		has := map[types.UID]bool{}
		for _, incarnation := range more {
			has[types.UID(incarnation.UID)] = true
		}
		kept := more
		for _, incarnation := range list {
			if !has[types.UID(incarnation.UID)] {
				kept = append(kept, incarnation)
			}
		}
		list = kept
	}
	return list, nil
}
