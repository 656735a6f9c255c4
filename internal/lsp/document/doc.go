// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package document tracks the documents that the clients of one language server have open, and the notifications that the server needs.
//
// The protocol assumes one owner per document: a document is opened once at the server, which has one text of it. Here many clients may have the same document
// open, each with its own text, its view. The server has one of the views, and is switched to another before it answers a client with that view. No client
// therefore receives an answer that was computed from another client's unsaved text.
//
// This package does not block, read a clock or start goroutines. A Set has one owner, which sends the returned notifications to the server in order.
package document
