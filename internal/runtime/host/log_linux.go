// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/logfile"
	"github.com/berth-dev/berth/internal/shim"
)

// OpenLog implements runtime.Logs.
func (h *Host) OpenLog(_ context.Context, uid types.UID) (runtime.Log, error) {
	if !shim.ValidUID(string(uid)) {
		return nil, fmt.Errorf("log of %q: %w", uid, runtime.ErrNotFound)
	}
	log, err := logfile.Open(filepath.Join(h.dir(uid), shim.LogFile))
	if err != nil {
		return nil, fmt.Errorf("log of %s: %w", uid, err)
	}
	return log, nil
}

// LastActivity implements runtime.Logs. It returns the time at which the output last grew.
func (h *Host) LastActivity(_ context.Context, uid types.UID) (time.Time, error) {
	if !shim.ValidUID(string(uid)) {
		return time.Time{}, fmt.Errorf("activity of %q: %w", uid, runtime.ErrNotFound)
	}
	at, err := logfile.LastActivity(filepath.Join(h.dir(uid), shim.LogFile))
	if err != nil {
		return time.Time{}, fmt.Errorf("activity of %s: %w", uid, err)
	}
	return at, nil
}

// Watch implements runtime.Logs.
func (h *Host) Watch(_ context.Context, uid types.UID) error {
	if !shim.ValidUID(string(uid)) {
		return fmt.Errorf("watch %q: %w", uid, runtime.ErrNotFound)
	}
	return h.notice.Watch(uid, filepath.Join(h.dir(uid), shim.LogFile))
}
