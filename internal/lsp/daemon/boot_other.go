// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package daemon

// bootID returns the empty string on this system, where no server can be started.
func bootID() (string, error) { return "", nil }
