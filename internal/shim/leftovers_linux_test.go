// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"golang.org/x/sys/unix"
)

func TestLeftovers_GetTimeToReactToTheStopSignal(t *testing.T) {
	start := time.Now()
	for _, c := range []struct {
		name    string
		stopped bool
		after   []time.Duration
		want    []unix.Signal
	}{
		{"the program exited by itself", false, []time.Duration{0, time.Second, 2100 * time.Millisecond}, []unix.Signal{unix.SIGTERM, 0, unix.SIGKILL}},
		{"the stop signal was sent", true, []time.Duration{0, 400 * time.Millisecond, 500 * time.Millisecond, 2 * time.Second, 2600 * time.Millisecond},
			[]unix.Signal{0, 0, unix.SIGTERM, 0, unix.SIGKILL}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := NewWithT(t)
			var leftovers Leftovers
			for i, after := range c.after {
				g.Expect(leftovers.Due(start.Add(after), c.stopped)).To(Equal(c.want[i]), "after %s", after)
			}
		})
	}
}
