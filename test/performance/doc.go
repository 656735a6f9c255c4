// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package performance measures the speed and the resource usage of Berth; docs/performance.md describes the results. Run it with make bench.
//
// Where possible, a figure is the ratio of a measurement to a reference that is measured in the same run, so that a slow machine affects both. The
// figure is the median of three rounds. The assertions allow for noise beyond the stated limit; the marks in the printed table do not.
package performance
