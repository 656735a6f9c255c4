// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package wire reads, scans and writes the messages of the Language Server Protocol without decoding their bodies.
//
// The peer of a connection may be broken or hostile. A message is therefore rejected at its header where possible, memory grows with the bytes that have
// arrived and not with those announced, and a message that has begun must arrive in time. Scan accepts only strict JSON: the input of one client must not break
// a server that others use too.
package wire
