// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Command berth-lsp-pod is the variant of berth-lsp for Pods: the main process of a container, which clients reach over the network. Berth starts it; it is not
// meant to be run by hand.
package main

import (
	"os"

	"github.com/berth-dev/berth/internal/descriptors"
	"github.com/berth-dev/berth/internal/lsp/podmain"
)

func main() {
	descriptors.CloseOnExec()
	os.Exit(podmain.Main(os.Args))
}
