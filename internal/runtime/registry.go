// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
)

// Backend is one backend of a Registry. If the manager cannot provide the backend, Runtime is nil, and the status of objects with this type shows Missing as
// the reason.
type Backend struct {
	Type    v1alpha1.RuntimeType
	Runtime Runtime
	Missing string
}

// Registry holds the backends of a manager. It does not change after NewRegistry.
type Registry struct {
	base    Runtime
	others  []Backend
	missing map[v1alpha1.RuntimeType]string
	log     logr.Logger
}

// NewRegistry returns a registry. The base runs objects whose runtime is Host or not set. The others are searched before the base, because they may run their
// incarnations as processes of the base.
func NewRegistry(base Runtime, log logr.Logger, others ...Backend) *Registry {
	r := &Registry{base: base, log: log, missing: map[v1alpha1.RuntimeType]string{}}
	for _, member := range others {
		if member.Runtime == nil {
			r.missing[member.Type] = member.Missing
			continue
		}
		r.others = append(r.others, member)
	}
	return r
}

// For returns the backend of a type. It returns the base if the type is empty or Host. If no backend has the type, it returns the base if the base is disabled,
// and otherwise a backend that starts nothing (Capabilities.Disabled) but still stops the processes of the base.
func (r *Registry) For(kind v1alpha1.RuntimeType) Runtime {
	for _, member := range r.others {
		if member.Type == kind {
			return member.Runtime
		}
	}
	if kind == "" || kind == v1alpha1.RuntimeHost || r.base.Capabilities().Disabled != "" {
		return r.base
	}
	why, known := r.missing[kind]
	if !known {
		why = "This manager does not serve the runtime " + string(kind) + "."
	}
	return disable(r.base, why)
}

// Has reports whether the manager has an enabled backend of that type. It ignores the base.
func (r *Registry) Has(kind v1alpha1.RuntimeType) bool {
	for _, member := range r.others {
		if member.Type == kind {
			return member.Runtime.Capabilities().Disabled == ""
		}
	}
	return false
}

// All returns the backends in the order in which they are searched.
func (r *Registry) All() []Runtime {
	all := make([]Runtime, 0, len(r.others)+1)
	for _, member := range r.others {
		all = append(all, member.Runtime)
	}
	return append(all, r.base)
}

// Find returns the backends that have an incarnation of the UID, or ErrNotFound: the first one that runs it on this machine, and each one that reports a Pod.
// There can be two, because any user can create a Pod with the UID of an object as its label. A backend that does not answer is skipped if another one has the
// UID.
func (r *Registry) Find(ctx context.Context, uid types.UID) (holders []Runtime, err error) {
	var failed []error
	here := false
	for _, backend := range r.All() {
		found, err := backend.Observe(ctx, uid)
		switch {
		case err != nil:
			failed = append(failed, err)
		case len(found) == 0:
		case inPod(found[0]):
			holders = append(holders, backend)
		case !here:
			here = true
			holders = append([]Runtime{backend}, holders...)
		}
	}
	switch {
	case len(holders) > 0:
		return holders, nil
	case len(failed) > 0:
		return nil, fmt.Errorf("find the runtime of %s: %w", uid, errors.Join(failed...))
	}
	return nil, ErrNotFound
}

func inPod(i facts.Incarnation) bool { return i.Namespace != "" }

// Forget removes every trace of a UID. If no backend has an incarnation of it, Forget calls all of them, because a backend may have prepared a start.
func (r *Registry) Forget(ctx context.Context, uid types.UID) error {
	backends, err := r.Find(ctx, uid)
	if errors.Is(err, ErrNotFound) {
		backends, err = r.All(), nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, backend := range backends {
		errs = append(errs, backend.Forget(ctx, uid))
	}
	return errors.Join(errs...)
}

// List returns the incarnations of all UIDs. If the base returns an error, List returns that error; if another backend does, List omits its incarnations.
func (r *Registry) List(ctx context.Context) ([]facts.Incarnation, error) {
	list, err := r.base.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, member := range r.others {
		more, err := member.Runtime.List(ctx)
		if err != nil {
			r.log.V(1).Info("A runtime cannot list its incarnations", "type", member.Type, "error", err.Error())
			continue
		}
		has := map[string]bool{}
		for _, incarnation := range more {
			if !inPod(incarnation) { // the labels of a Pod must not hide a process
				has[incarnation.UID] = true
			}
		}
		for _, incarnation := range list {
			if !has[incarnation.UID] {
				more = append(more, incarnation)
			}
		}
		list = more
	}
	return list, nil
}
