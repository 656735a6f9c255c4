// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package races contains one spec for each row of the race table, which lists the races that Berth exists to prevent. The specs use the real manager,
// a real API server, the host runtime and real processes. Each row has a mutant: a fault that removes the guard that the row covers. With that fault
// the row has to fail (faults_linux_test.go; make mutants).
package races
