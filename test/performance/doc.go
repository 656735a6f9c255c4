// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package performance measures the speed and the resource usage of Berth; docs/performance.md describes the results. Run it with make bench.
//
// Where possible, a figure is a ratio to a reference that is measured in the same run, and the median of three rounds, so that a slow machine
// affects both sides. The assertions allow for noise beyond the stated limit; the printed table does not.
package performance
