// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package watch

import "time"

// Watcher watches folders.
type Watcher struct{}

// Start returns ErrUnsupported.
func Start([]string, time.Time, func(Report)) (*Watcher, error) { return nil, ErrUnsupported }

// SetFolders sets the folders.
func (w *Watcher) SetFolders([]string) {}

// Sync requests a report.
func (w *Watcher) Sync() int64 { return 0 }

// Close stops the watcher.
func (w *Watcher) Close() {}
