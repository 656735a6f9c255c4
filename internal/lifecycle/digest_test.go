// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"encoding/json"
	"hash/fnv"
	"os"
	"testing"
	"time"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// TestDigest_OfDecisions prints a digest of all decisions in the state space of the explorer. A change of the code that must not change a decision prints the same
// digest as before:
//
//	EXPLORE_STATES=50000 go test -run TestDigest -v ./internal/lifecycle
func TestDigest_OfDecisions(t *testing.T) {
	if os.Getenv("EXPLORE_STATES") == "" {
		t.Setenv("EXPLORE_STATES", "500")
	}
	var decisions, digest uint64
	defer func() { next = Next }()
	next = func(d Desired, r v1alpha1.ProcessStatus, o Observed, now time.Time) Step {
		step := Next(d, r, o, now)
		text, err := json.Marshal(step)
		if err != nil {
			t.Fatal(err)
		}
		hash := fnv.New64a()
		_, _ = hash.Write(text)
		decisions++
		digest += hash.Sum64() // the sum does not depend on the order
		return step
	}
	TestInterleavings_KeepInvariants(t)
	if decisions < 500 {
		t.Errorf("%d decisions in the state space", decisions)
	}
	t.Logf("%d decisions, digest %016x", decisions, digest)
}
