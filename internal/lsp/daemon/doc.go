// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package daemon implements berth-lsp: it runs one language server and carries out the commands of a manager.
package daemon
