// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package clocks steps the wall clock of all processes of Berth while objects are in every state: berth up, berth-apiserver, the shims and the multiplexers.
// The clock of the machine, and so that of the tests and of the programs that Berth runs, stays as it is.
package clocks
