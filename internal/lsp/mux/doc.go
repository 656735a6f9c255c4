// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package mux connects many clients to one language server, which may be replaced while the clients stay connected.
//
// One mutex guards all state, and no call blocks while the mutex is held: each client and the server have a queue in memory, a goroutine that writes the queue
// to the connection, and a goroutine that reads messages. A request is in exactly one state at any time: waiting, in flight, or answered and removed; it is
// therefore answered exactly once. Timeouts are evaluated only in Tick.
package mux
