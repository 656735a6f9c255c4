// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package plane

import (
	"testing"

	"github.com/onsi/ginkgo/v2/types"
)

// Failures are the specs of a suite that have failed. To the go command a suite is one test, so it names no spec.
type Failures []types.SpecReport

// Note is for ReportAfterEach.
func (f *Failures) Note(report types.SpecReport) {
	if report.Failed() {
		*f = append(*f, report)
	}
}

// Tell gives each failed spec a test of its own, so that whoever reads only the names of the failed tests sees which it was, and why.
func (f *Failures) Tell(t *testing.T) {
	for _, report := range *f {
		t.Run(report.LeafNodeText, func(t *testing.T) {
			t.Errorf("%s: %s", report.FailureLocation(), report.FailureMessage())
		})
	}
}
