// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package races shows, one spec per row of the race table, that the races which Berth exists to end cannot happen: with the real manager, a real
// API server, the host runtime and real processes. Each row has a tooth: a fault that takes out the guard which the row covers, and with which
// the row has to fail (faults_linux_test.go; make races-teeth).
package races
