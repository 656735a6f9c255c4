// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package mux connects many clients to one language server, which may be replaced while the clients stay connected.
//
// One mutex guards all state, and no call blocks while the mutex is held: each client and the server have a queue in memory, a goroutine that writes the queue
// to the connection, and a goroutine that reads messages. A request is in exactly one state at any time: waiting, in flight, or answered and removed; it is
// therefore answered exactly once. Timeouts are evaluated only in Tick.
//
// The state is divided into the following parts. The methods of a part read and change only that part and their arguments, and send nothing. The methods of Mux
// combine them: they handle a message or the passing of time, call methods of the parts, and put the messages that result into queues.
//
//	clients        the sessions of the connected clients
//	document.Set   the texts of the clients, and which of them the server has (package document)
//	requestPool    requests that were answered, whose memory is used again
//	waiting        requests that wait for a server
//	backend        one incarnation of the server, which consists of
//	  flight         the requests that it has not answered
//	  health         observations of the server; examine decides whether it has to be restarted
//	  pulling        the requests for its diagnostics, if it sends them only on request
//	features       what was announced to clients, and what of it the current server lacks
//	fileWatch      the files on disk whose changes are reported to the server
//	stamp          marks data that the server gets back with its origin, and stores nothing
//	publications   the newest diagnostics of each document
//	inquiry        a pending request berth/diagnostics; doubt decides whether the diagnostics are those of the text
//	quarantine     the documents and requests with which servers have crashed
//	effects        what is done when the mutex is released
package mux
