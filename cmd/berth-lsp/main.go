// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Command berth-lsp holds one language server and multiplexes its clients. It is started by berth, never by hand.
package main

import (
	"os"

	"github.com/berth-dev/berth/internal/lsp/program"
)

func main() { os.Exit(program.Main(os.Args)) }
