// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
)

// libraries sets the loggers of controller-runtime and client-go once per process, because goroutines of an earlier manager may still read them when a later
// manager starts.
var libraries sync.Once

// logFormat is the format of the lines of a log: logText or logJSON.
type logFormat string

const (
	logText logFormat = "text" // key=value
	logJSON logFormat = "json" // one object per line
)

// useLogger returns a logger for the manager that writes to out. The first one in this process also gets the logs of controller-runtime and client-go.
func useLogger(out io.Writer, level slog.Level, format logFormat) logr.Logger {
	logger := newLogger(out, level, format)
	libraries.Do(func() {
		ctrl.SetLogger(logger)
		klog.SetLogger(logger)
	})
	return logger
}

func newLogger(out io.Writer, level slog.Level, format logFormat) logr.Logger {
	options := &slog.HandlerOptions{Level: level}
	if format == logJSON {
		return logr.FromSlogHandler(slog.NewJSONHandler(out, options))
	}
	return logr.FromSlogHandler(slog.NewTextHandler(out, options))
}

// openLog opens the log of the manager for appending, because its end may explain why the previous manager exited. The control plane limits the size of the file.
func openLog(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log: %w", err)
	}
	return file, nil
}
