// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package logfile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/runtime"
)

var _ runtime.Logs = (*Logs)(nil)

// Logs implements runtime.Logs for a backend that stores the output of each UID in a file.
type Logs struct {
	path   func(types.UID) string
	notice *notice // nil if the system has no inotify instance left
}

// NewLogs returns the Logs with the given paths. Watch makes it call the function tell. If it also returns an error, Watch does not work.
func NewLogs(path func(types.UID) string, tell func(types.UID)) (*Logs, error) {
	notice, err := newNotice(tell)
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
	if !runtime.ValidUID(uid) {
		return nil, fmt.Errorf("log of %q: %w", uid, runtime.ErrNotFound)
	}
	log, err := Open(l.path(uid))
	if err != nil {
		return nil, fmt.Errorf("log of %s: %w", uid, err)
	}
	return log, nil
}

// LastActivity implements runtime.Logs. It returns the time at which the output last grew, or runtime.ErrNotFound without output.
func (l *Logs) LastActivity(_ context.Context, uid types.UID) (time.Time, error) {
	if !runtime.ValidUID(uid) {
		return time.Time{}, fmt.Errorf("activity of %q: %w", uid, runtime.ErrNotFound)
	}
	info, err := os.Stat(l.path(uid))
	if errors.Is(err, os.ErrNotExist) || err == nil && info.Size() == 0 {
		err = runtime.ErrNotFound
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("activity of %s: %w", uid, err)
	}
	return info.ModTime(), nil
}

// Watch implements runtime.Logs.
func (l *Logs) Watch(_ context.Context, uid types.UID) error {
	if !runtime.ValidUID(uid) {
		return fmt.Errorf("watch %q: %w", uid, runtime.ErrNotFound)
	}
	return l.notice.Watch(uid, l.path(uid))
}
