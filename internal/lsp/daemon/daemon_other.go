// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/berth-dev/berth/internal/lsp"
)

var errUnsupported = errors.New("language servers require Linux, because Berth stops their processes with subreapers and pidfds")

// Main reports that berth-lsp does not support this operating system, and returns 1.
func Main([]string) int {
	fmt.Fprintln(os.Stderr, "berth-lsp:", errUnsupported)
	return 1
}

// Until does the same as Main.
func Until(func(context.Context) error) int { return Main(nil) }

// Serve returns an error that explains what this system lacks.
func Serve(context.Context, net.Listener, net.Listener, func(lsp.Report) error, *os.File) error {
	return errUnsupported
}
