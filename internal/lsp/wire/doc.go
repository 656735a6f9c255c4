// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package wire reads, scans and writes the messages of the Language Server Protocol without decoding their bodies.
//
// Whoever is at the other end of a connection may be broken or hostile. So a message is refused at its header where possible, memory grows
// with the bytes that really arrived rather than with those that were announced, and a message that has begun has to arrive in time. Scan
// accepts strict JSON only: what one client sends must not be able to break a server that others use too.
package wire
