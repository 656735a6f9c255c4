// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Command berth runs the processes that coding agents need, as Kubernetes resources. It also works as the kubectl plugin kubectl berth.
package main

import (
	"os"

	"github.com/berth-dev/berth/internal/cli"
	"github.com/berth-dev/berth/internal/descriptors"
)

func main() {
	descriptors.CloseOnExec()
	os.Exit(cli.Main(os.Args))
}
