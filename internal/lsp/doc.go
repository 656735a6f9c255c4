// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package lsp is what the manager and berth-lsp, the language-server multiplexer, say to each other.
//
// One berth-lsp serves one LanguageServer object. It holds the server as its child and the clients as its connections, and it stays while
// the server behind it is restarted: a restart is a new incarnation inside the same multiplexer. It decides nothing about starts and ends:
// it reports what it sees, and does what the manager's state machine asks for.
//
// The rooms: wire frames and scans messages, document holds what clients have open, mux joins both to sessions and one server,
// server is the child process, control the socket between manager and multiplexer. All of them import the standard library and x/sys only.
package lsp
