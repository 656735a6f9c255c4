// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import "testing"

func TestTogether_MergesEventsIntoOne(t *testing.T) {
	ended, ready := Event{Warning: true, Reason: "Crashed", Message: "It crashed."}, Event{Reason: "Running", Message: "It is ready."}
	starting := Event{Reason: "Starting", Message: "It starts."}
	for name, c := range map[string]struct {
		events []Event
		want   Event
	}{
		"one":            {[]Event{starting}, starting},
		"the last event": {[]Event{starting, ready}, Event{Reason: "Running", Message: "It starts. It is ready."}},
		"a warning":      {[]Event{ended, starting, ready}, Event{Warning: true, Reason: "Crashed", Message: "It crashed. It starts. It is ready."}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Together(c.events); got != c.want {
				t.Fatalf("got %+v, want %+v", got, c.want)
			}
		})
	}
}
