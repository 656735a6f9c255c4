// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
)

// logFileLimit is the maximum size of the log of the manager, in bytes. One previous log is kept beside it, with the suffix .old.
const logFileLimit = 8 << 20

// shared is the destination of the logs of controller-runtime and client-go. The loggers of these libraries are set only once per process, because goroutines
// of an earlier manager may still read them when a later manager starts. A later manager only changes the destination of the redirect.
var shared struct {
	once sync.Once
	to   redirect
}

// logFormat is the format of the lines of a log: logText or logJSON.
type logFormat string

const (
	logText logFormat = "text" // key=value
	logJSON logFormat = "json" // one object per line
)

// useLogger directs the logs of controller-runtime and client-go to out, and returns a logger for the manager that writes there too.
func useLogger(out io.Writer, level slog.Level, format logFormat) logr.Logger {
	shared.to.lead(out)
	shared.once.Do(func() {
		logger := newLogger(&shared.to, level, format)
		ctrl.SetLogger(logger)
		klog.SetLogger(logger)
	})
	return newLogger(out, level, format)
}

func newLogger(out io.Writer, level slog.Level, format logFormat) logr.Logger {
	options := &slog.HandlerOptions{Level: level}
	if format == logJSON {
		return logr.FromSlogHandler(slog.NewJSONHandler(out, options))
	}
	return logr.FromSlogHandler(slog.NewTextHandler(out, options))
}

// redirect is a writer that forwards to a replaceable writer.
type redirect struct {
	mu sync.Mutex
	to io.Writer
}

func (r *redirect) lead(to io.Writer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.to = to
}

func (r *redirect) Write(line []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.to.Write(line)
}

// logFile is a log file that is rotated before it exceeds logFileLimit.
type logFile struct {
	path string
	mu   sync.Mutex
	file *os.File
	size int64
}

func openLogFile(path string) (*logFile, error) {
	l := &logFile{path: path}
	return l, l.open()
}

// open opens the log for appending, because its end may explain why the previous manager exited.
func (l *logFile) open() error {
	file, err := os.OpenFile(l.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open the log: %w", err)
	}
	info, err := file.Stat()
	if err != nil {
		return errors.Join(fmt.Errorf("open the log: %w", err), file.Close())
	}
	l.file, l.size = file, info.Size()
	return nil
}

func (l *logFile) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return len(line), nil // lines that arrive after Close are dropped
	}
	if l.size+int64(len(line)) > logFileLimit {
		if err := errors.Join(l.file.Close(), os.Rename(l.path, l.path+".old"), l.open()); err != nil {
			return 0, err
		}
	}
	n, err := l.file.Write(line)
	l.size += int64(n)
	return n, err
}

func (l *logFile) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	err := l.file.Close()
	l.file = nil
	return err
}
