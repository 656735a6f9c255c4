// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"strconv"
	"testing"

	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime/conformance"
)

func TestConformance(t *testing.T) {
	conformance.Run(t, func(t *testing.T) conformance.Harness {
		r := New(t.Context(), clock.RealClock{})
		r.Imitate(imitateWorkload)
		return conformance.Harness{Runtime: r, Program: "workload"}
	})
}

// imitateWorkload imitates the program of the conformance suite.
func imitateWorkload(command []string) (Program, bool) {
	if len(command) < 2 {
		return Program{}, false
	}
	switch command[1] {
	case "ignore":
		return Program{IgnoreStop: true}, true
	case "exit":
		code, err := strconv.ParseInt(command[2], 10, 32)
		return Program{Exit: &facts.Exit{Known: true, Code: int32(code)}}, err == nil
	case "signal":
		number, err := strconv.Atoi(command[2])
		return Program{Exit: &facts.Exit{Known: true, Signal: map[int]string{2: "SIGINT", 9: "SIGKILL", 15: "SIGTERM"}[number]}}, err == nil
	default:
		return Program{}, false
	}
}
