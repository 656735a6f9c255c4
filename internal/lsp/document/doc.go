// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package document tracks the documents that the clients of one language server have open, and the notifications that the server needs.
//
// The protocol assumes one owner per document: a document is opened once, and the server has one text of it. Here many clients may have the same document open,
// each with its own text. The text that a client has of a document is a view. The server has one of the views of each document. Before a request of a client is
// sent, the server is switched to the views of that client. Therefore no client receives an answer that was computed from another client's unsaved text.
//
// This package does not block, read a clock or start goroutines. A Set has one owner, which sends the returned notifications to the server in order.
package document
