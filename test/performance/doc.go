// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package performance measures how fast Berth is and what it costs: see docs/performance.md. Run it with make bench.
//
// Every figure that can be is a ratio to something that was measured in the same run, and the median of three, so that a slow machine makes both
// sides slow. What is asserted leaves room for noise beyond the stated limit; what is printed does not.
package performance
