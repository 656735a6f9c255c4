// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Command berth-lsp-pod is berth-lsp for a Pod: its main process, which is reached over the network. It is started by berth, never by hand.
package main

import (
	"os"

	"github.com/berth-dev/berth/internal/lsp/inpod"
)

func main() { os.Exit(inpod.Main(os.Args)) }
