// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package logfile

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/shim"
)

var _ runtime.Logs = (*Logs)(nil)

// Logs implements runtime.Logs for a backend that stores the output of each UID in a file.
type Logs struct {
	path   func(types.UID) string
	notice *Notice // nil if the system has no inotify instance left
}

// NewLogs returns the Logs with the given paths. Watch makes it call the function tell. If it also returns an error, Watch does not work.
func NewLogs(path func(types.UID) string, tell func(types.UID)) (*Logs, error) {
	notice, err := NewNotice(tell)
	return &Logs{path: path, notice: notice}, err
}

// StopWatching ends the calls of the function tell.
func (l *Logs) StopWatching() error {
	if l == nil {
		return nil
	}
	return l.notice.Close()
}

// OpenLog implements runtime.Logs.
func (l *Logs) OpenLog(_ context.Context, uid types.UID) (runtime.Log, error) {
	if !shim.ValidUID(string(uid)) {
		return nil, fmt.Errorf("log of %q: %w", uid, runtime.ErrNotFound)
	}
	log, err := Open(l.path(uid))
	if err != nil {
		return nil, fmt.Errorf("log of %s: %w", uid, err)
	}
	return log, nil
}

// LastActivity implements runtime.Logs. It returns the time at which the output last grew.
func (l *Logs) LastActivity(_ context.Context, uid types.UID) (time.Time, error) {
	if !shim.ValidUID(string(uid)) {
		return time.Time{}, fmt.Errorf("activity of %q: %w", uid, runtime.ErrNotFound)
	}
	at, err := LastActivity(l.path(uid))
	if err != nil {
		return time.Time{}, fmt.Errorf("activity of %s: %w", uid, err)
	}
	return at, nil
}

// Watch implements runtime.Logs.
func (l *Logs) Watch(_ context.Context, uid types.UID) error {
	if !shim.ValidUID(string(uid)) {
		return fmt.Errorf("watch %q: %w", uid, runtime.ErrNotFound)
	}
	return l.notice.Watch(uid, l.path(uid))
}
