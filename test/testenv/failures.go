// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"testing"

	"github.com/onsi/ginkgo/v2/types"
)

// Failures collects the failed specs of a suite. The go command regards a suite as one test, so its output does not name the specs that failed.
type Failures []types.SpecReport

// Note records a failed spec. Pass it to ReportAfterEach.
func (f *Failures) Note(report types.SpecReport) {
	if report.Failed() {
		*f = append(*f, report)
	}
}

// Report reports each failed spec as a subtest, so that the names of the failed tests include the failed specs and their messages.
func (f *Failures) Report(t *testing.T) {
	for _, report := range *f {
		t.Run(report.LeafNodeText, func(t *testing.T) {
			t.Errorf("%s: %s", report.FailureLocation(), report.FailureMessage())
		})
	}
}
