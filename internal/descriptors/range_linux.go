// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package descriptors

import (
	"math"

	"golang.org/x/sys/unix"
)

// closeRange needs Linux 5.11.
func closeRange() error { return unix.CloseRange(first, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) }
