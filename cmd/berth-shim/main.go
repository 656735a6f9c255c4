// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Command berth-shim supervises one process of Berth. Berth starts it; it is not meant to be run by hand.
package main

import (
	"os"

	"github.com/berth-dev/berth/internal/descriptors"
	"github.com/berth-dev/berth/internal/shim"
	"github.com/berth-dev/berth/internal/terminal"
)

func main() {
	descriptors.CloseOnExec()
	os.Exit(shim.Main(os.Args, func(columns, rows int) shim.Screen { return terminal.New(columns, rows) }))
}
