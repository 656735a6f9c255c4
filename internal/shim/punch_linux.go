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

// Puncher bounds the disk that a log takes, by punching out its old part: offsets stay valid, and no reader or writer is disturbed.
type Puncher struct {
	File  *os.File // open for writing
	Limit int64    // bytes on disk

	punched, size int64
	checked       time.Time
}

// Check punches when there is too much, and says when to check again: soon when the log grows fast.
func (p *Puncher) Check(now time.Time) time.Duration {
	var st unix.Stat_t
	if err := unix.Fstat(int(p.File.Fd()), &st); err != nil || p.Limit <= 0 {
		return slowCheck
	}
	next := p.pace(st.Size, now)
	if st.Blocks*512 <= p.Limit {
		return next
	}
	// Punching down to a half makes it rare, and leaves room for what is written until the next check.
	end := (st.Size - p.Limit/2) &^ pageMask
	if end <= p.punched {
		return next
	}
	if err := unix.Fallocate(int(p.File.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, p.punched, end-p.punched); err == nil {
		p.punched = end
	}
	return next
}

// pace is the time in which an eighth of the limit is written at the present rate.
func (p *Puncher) pace(size int64, now time.Time) time.Duration {
	grown, elapsed := size-p.size, now.Sub(p.checked)
	first := p.checked.IsZero()
	p.size, p.checked = size, now
	if first {
		return 20 * time.Millisecond
	}
	if grown <= 0 {
		// Slow down step by step, so that a burst after a short silence is met early.
		return min(max(2*elapsed, fastCheck), slowCheck)
	}
	next := time.Duration(float64(elapsed) * float64(p.Limit/8) / float64(grown))
	return min(max(next, fastCheck), slowCheck)
}
