// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package lsp defines the protocol between the manager and berth-lsp, the language-server multiplexer.
//
// One berth-lsp serves one LanguageServer object. The server is its child process, and the clients are its connections. It keeps running while the server is
// restarted: a restart is a new incarnation inside the same multiplexer. It makes no decisions about starts and stops: it reports its state, and carries out
// the commands of the manager's state machine.
//
// The subpackages: wire frames and scans messages, document tracks the open documents of clients, mux connects clients and documents to one server, server is
// the child process, control is the socket between manager and multiplexer. All of them import only the standard library and x/sys.
package lsp
