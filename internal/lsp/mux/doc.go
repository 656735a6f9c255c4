// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package mux connects many clients to one language server, which may be replaced while they stay connected.
//
// One mutex guards all state, and no call blocks while it is held: every client and the server have a queue in memory with a goroutine that writes it, and a
// reader goroutine. A request is in exactly one state at any time: waiting, in flight, or answered and removed; it is therefore answered exactly once. Timeouts
// are evaluated only in Tick.
package mux
