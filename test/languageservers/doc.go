// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package languageservers tests real language servers: for several kinds of clients, the answers of a server that the clients share through the multiplexer are
// compared with those of a server that each client has for itself.
package languageservers
