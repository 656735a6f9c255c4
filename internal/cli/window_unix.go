// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package cli

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/berth-dev/berth/internal/runtime"
)

// onResize calls changed with each new size of the window until the context is done.
func (w window) onResize(ctx context.Context, changed func(runtime.Terminal)) {
	if w.out < 0 {
		return
	}
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGWINCH)
	go func() {
		defer signal.Stop(caught)
		for {
			select {
			case <-ctx.Done():
				return
			case <-caught:
				if size := w.size(); size != nil {
					changed(*size)
				}
			}
		}
	}()
}
