// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Command berth-shim holds one process of Berth. It is started by berth, never by hand.
package main

import (
	"os"

	"github.com/berth-dev/berth/internal/shim"
)

func main() {
	os.Exit(shim.Main(os.Args))
}
