// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package mux joins many clients to one language server, which may be replaced while they stay.
//
// All state is behind one mutex, and nothing is waited for while it is held: every client and the server have a queue in memory with a
// goroutine that writes it, and a reader of their own. A request belongs to exactly one of three lists at any time: it waits, it is in
// flight, or it is answered and forgotten; so it is answered exactly once. Time is looked at in Tick only.
package mux
