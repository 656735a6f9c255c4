// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package hook

import (
	"context"
	"time"
)

// Start returns at once, because this system does not name the process at the other end of a socket reliably.
func (*Server) Start(context.Context) error { return nil }

// Send returns ErrUnsupported.
func Send(string, Report, time.Duration) error { return ErrUnsupported }
