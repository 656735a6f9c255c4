// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package gate is how a multiplexer is reached over a network: TLS with one certificate that is known beforehand, a request of HTTP/1.1 with a token,
// and from its answer on the stream of a client or of the manager. An API server passes such requests on, so clients need no way into the cluster.
package gate

// What a Secret of a multiplexer holds, and the files are called that the multiplexer finds it in.
const (
	// Certificate and Key are PEM. Nobody has signed it: who dials compares it with the one in the Secret.
	Certificate = "tls.crt"
	Key         = "tls.key"
	// ClientToken opens ClientPath, ManagerToken opens ManagerPath.
	ClientToken  = "token"
	ManagerToken = "manager-token"
)

// Where a multiplexer is reached, and how.
const (
	// Port is where a multiplexer listens in its Pod.
	Port = 7077
	// ClientPath leads to the language server, ManagerPath to the control of the multiplexer.
	ClientPath  = "/lsp"
	ManagerPath = "/manager"
	// TokenHeader has the token. It is not Authorization, which an API server keeps to itself.
	TokenHeader = "Berth-Token"
	// Protocol is what a request asks to be upgraded to.
	Protocol = "berth-lsp"
)
