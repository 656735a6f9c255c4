// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package facts

// Receipt states what a terminal has received of a stream of counted input.
type Receipt struct {
	// Total is the number of bytes, over all connections.
	Total int64 `json:"total"`
	// Ended means that the stream has ended. Passed means that the program has received this end, because its terminal reads lines.
	Ended  bool `json:"ended,omitempty"`
	Passed bool `json:"passed,omitempty"`
}
