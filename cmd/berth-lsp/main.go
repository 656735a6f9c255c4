// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Command berth-lsp runs one language server and multiplexes its clients, or connects one client to it. Berth starts it; it is not meant to be run by hand.
package main

import (
	"os"

	"github.com/berth-dev/berth/internal/descriptors"
	"github.com/berth-dev/berth/internal/lsp/bridge"
	"github.com/berth-dev/berth/internal/lsp/daemon"
)

func main() {
	descriptors.CloseOnExec()
	if len(os.Args) > 1 && os.Args[1] == "connect" {
		os.Exit(bridge.Main(os.Args[2:]))
	}
	os.Exit(daemon.Main(os.Args))
}
