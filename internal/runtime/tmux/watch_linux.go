// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package tmux

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/proctree"
)

// LastActivity implements runtime.Logs. For an adopted session it returns the time that tmux reported at the last check; every Observe is such a check.
func (r *Runtime) LastActivity(ctx context.Context, uid types.UID) (time.Time, error) {
	rec, err := r.read(uid)
	if err != nil {
		return time.Time{}, err
	}
	if rec == nil || !rec.Adopted {
		return r.host.LastActivity(ctx, uid)
	}
	l := r.links.Acquire(uid)
	defer l.Unlock()
	if l.active.IsZero() && rec.Exit == nil {
		l.lookAdopted(ctx, rec)
	}
	if l.active.IsZero() {
		return time.Time{}, fmt.Errorf("activity of session %s: %w", rec.Session, runtime.ErrNotFound)
	}
	return l.active, nil
}

// Watch implements runtime.Logs. It does nothing for an adopted session, which is polled anyway.
func (r *Runtime) Watch(ctx context.Context, uid types.UID) error {
	rec, err := r.read(uid)
	if err != nil || rec != nil && rec.Adopted {
		return err
	}
	return r.host.Watch(ctx, uid)
}

// Members implements runtime.Inspection.
func (r *Runtime) Members(ctx context.Context, uid types.UID) ([]runtime.Member, error) {
	rec, err := r.read(uid)
	if err != nil {
		return nil, err
	}
	if rec == nil || !rec.Adopted {
		return r.host.Members(ctx, uid)
	}
	if err := r.mayControl(rec.Server, rec.Pane); err != nil {
		return nil, fmt.Errorf("list the processes of session %s: %w", rec.Session, err)
	}
	l := r.links.Acquire(uid)
	defer l.Unlock()
	found, err := l.members(rec)
	if err != nil {
		return nil, fmt.Errorf("list the processes of session %s: %w", rec.Session, err)
	}
	return proctree.Describe(found, rec.Pane.PID), nil
}
