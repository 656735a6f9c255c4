// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package lsp defines the protocol between the manager and berth-lsp, the language-server multiplexer.
//
// One berth-lsp serves one LanguageServer object. The language server is a child process of berth-lsp, and clients connect to berth-lsp. berth-lsp keeps
// running while the language server is restarted: a restart is a new incarnation inside the same multiplexer. berth-lsp does not decide when to start or stop
// the server: it reports its state and carries out the commands of the manager. berth-lsp stops the server without a command only when berth-lsp itself exits.
//
// The subpackages:
//
//	wire             frames and scans messages
//	document         keeps the open documents of clients
//	mux              connects clients to one server
//	server           runs the child process
//	control          is the socket between manager and multiplexer
//	transport        connects managers and clients to the multiplexer over a network
//	watch            reports changes of files on disk
//	bridge           is the connection of one editor
//	daemon, podmain  are the programs
//
// Apart from packages of Berth, all of them import only the standard library and x/sys.
package lsp
