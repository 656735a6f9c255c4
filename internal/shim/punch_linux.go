// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	pageMask  = 4096 - 1
	slowCheck = time.Second
	fastCheck = 2 * time.Millisecond
)

// Puncher bounds the disk space of a log by punching a hole over its old part. Offsets stay valid, and readers and writers are not disturbed.
type Puncher struct {
	File  *os.File // open for writing
	Limit int64    // bytes on disk

	punched, size int64
	checked       time.Time
}

// Check punches a hole if the log exceeds its limit, and returns the time until the next check, which is shorter if the log grows fast.
func (p *Puncher) Check(now time.Time) time.Duration {
	var st unix.Stat_t
	if err := unix.Fstat(int(p.File.Fd()), &st); err != nil || p.Limit <= 0 {
		return slowCheck
	}
	next := p.pace(st.Size, now)
	if st.Blocks*512 <= p.Limit {
		return next
	}
	// Punching down to half of the limit makes punching rare, and leaves space for writes until the next check.
	end := (st.Size - p.Limit/2) &^ pageMask
	if end <= p.punched {
		return next
	}
	if err := unix.Fallocate(int(p.File.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, p.punched, end-p.punched); err == nil {
		p.punched = end
	}
	return next
}

// pace returns the time in which an eighth of the limit is written at the current rate.
func (p *Puncher) pace(size int64, now time.Time) time.Duration {
	grown, elapsed := size-p.size, now.Sub(p.checked)
	first := p.checked.IsZero()
	p.size, p.checked = size, now
	if first {
		return 20 * time.Millisecond
	}
	if grown <= 0 {
		// The interval grows step by step, so that a burst after a short silence is detected early.
		return min(max(2*elapsed, fastCheck), slowCheck)
	}
	next := time.Duration(float64(elapsed) * float64(p.Limit/8) / float64(grown))
	return min(max(next, fastCheck), slowCheck)
}
