// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Command berth-lsp runs one language server and multiplexes its clients. Berth starts it; it is not meant to be run by hand.
package main

import (
	"os"

	"github.com/berth-dev/berth/internal/lsp/daemon"
)

func main() { os.Exit(daemon.Main(os.Args)) }
