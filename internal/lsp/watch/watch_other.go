// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package watch

// Watcher watches folders.
type Watcher struct{}

// Start returns ErrUnsupported.
func Start([]string, func([]Change), func(string)) (*Watcher, error) { return nil, ErrUnsupported }

// Close stops the watcher.
func (w *Watcher) Close() {}
