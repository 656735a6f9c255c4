// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package procstat identifies the processes of this machine, and reads from /proc what they are and what they use. It imports only the standard library and
// x/sys, because the shim and the multiplexer use it.
package procstat

import "errors"

// ErrGone is the error for a process that no longer exists. Its PID may belong to another process.
var ErrGone = errors.New("the process no longer exists")

// Process identifies a process within the current boot. A PID alone is not unique, because PIDs are reused.
type Process struct {
	PID   int    `json:"pid"`
	Ticks uint64 `json:"ticks"` // start time in clock ticks since boot
}
