// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package shim

import (
	"fmt"
	"os"
)

// Main reports that the shim does not support this operating system, and returns 1.
func Main([]string, NewScreen) int {
	fmt.Fprintln(os.Stderr, "berth-shim requires Linux, because adoption and exact exit codes depend on pidfds and subreapers")
	return 1
}
