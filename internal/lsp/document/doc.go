// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package document is what the clients of one language server have open, and what the server has to be told about it.
//
// The protocol knows one owner per document: the server may be told of an open document once, and sees one text of it. Here many clients
// hold the same document, each with its own text, its view. The server has one of the views, and is switched to another before it answers
// somebody who has that one. So nobody gets an answer that was computed on the unsaved text of somebody else.
//
// Nothing here waits, reads a clock or starts a goroutine; a Set has one owner, who sends what it returns to the server in that order.
package document
