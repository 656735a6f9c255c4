// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/berth-dev/berth/internal/hosts"
)

const (
	// silentAfter is the age of a Lease at which a command warns: two renewals are then missing. It is only a warning, because the clocks of two machines
	// may differ.
	silentAfter = 5 * hosts.Interval / 2
	// leaseTimeout bounds how long a command waits for the Leases.
	leaseTimeout = 3 * time.Second
)

// warnSilent warns if the managers that act on the objects have not renewed their Leases. It prints nothing if there is no Lease or the user may not read
// Leases.
func (a *app) warnSilent(ctx context.Context, to *connection, rows ...row) {
	if len(rows) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	renewed, err := hosts.Renewed(ctx, to.client, to.managerNamespace())
	if err != nil || len(renewed) == 0 {
		return
	}
	var newest time.Time
	for _, at := range renewed {
		if at.After(newest) {
			newest = at
		}
	}
	var owners []string
	for _, r := range rows {
		owners = append(owners, r.host)
	}
	slices.Sort(owners)
	for _, host := range slices.Compact(owners) {
		at, known := renewed[host]
		subject := "the manager of host " + host
		if host == "" { // any manager may serve an object without a host
			at, known, subject = newest, true, "every manager"
		}
		if silent := a.clock.Since(at); known && silent > silentAfter {
			a.say("warning: %s has been silent for %s, so the status may be out of date and requests are delayed: is it suspended, or did it exit? "+
				"Find the process of berth up or berth manager there, and continue it or start it again", subject, duration.HumanDuration(silent))
		}
	}
}
