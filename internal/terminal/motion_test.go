// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package terminal

import (
	"regexp"
	"testing"

	"github.com/berth-dev/berth/internal/facts"
)

// TestMotion_TellsWorkFromRepaintsOfRecordedPrograms checks for recordings of moving screens that an agent at work is active in each second, and that an Instance with a question
// is not: after the first seconds, only digits and marks move beside it.
func TestMotion_TellsWorkFromRepaintsOfRecordedPrograms(t *testing.T) {
	counted := map[bool]int{}
	works := regexp.MustCompile(`^(claude|codex|gemini|opencode)-(working|thinks|talks|runs|answered)$`)
	for _, r := range recordings(t) {
		if !r.moves() || !r.Asks && !works.MatchString(r.name) || r.name == "blink-scroll" { // which prints a log beside its question
			continue
		}
		counted[r.Asks]++
		for _, input := range []facts.Input{r.Input, {}} {
			var motion Motion
			for i := range r.Frames {
				active := motion.Adds(Look{View: r.frame(i), Input: input, Waits: r.Asks && i > 1})
				if i > 2 && active == r.Asks {
					t.Errorf("%s, second %d, with %+v: activity is %v", r.name, i, input, active)
				}
			}
		}
	}
	t.Logf("moving screens: %d with a question are inactive, %d of agents at work are active", counted[true], counted[false])
	if counted[true] < 10 || counted[false] < 10 {
		t.Errorf("at least 10 screens of each kind are required")
	}
}
