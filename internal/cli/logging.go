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

// logFileLimit bounds the log of the manager; the one before it is kept beside it.
const logFileLimit = 8 << 20

// useLogger makes one logger of everything that logs in this program: the manager, controller-runtime and client-go.
func useLogger(out io.Writer, level slog.Level) logr.Logger {
	logger := logr.FromSlogHandler(slog.NewTextHandler(out, &slog.HandlerOptions{Level: level}))
	ctrl.SetLogger(logger)
	klog.SetLogger(logger)
	return logger
}

// logFile is a file that starts anew when it has grown too long.
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

func (l *logFile) open() error {
	file, err := os.OpenFile(l.path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("open the log: %w", err)
	}
	l.file, l.size = file, 0
	return nil
}

func (l *logFile) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return len(line), nil // what is logged after the end is of no interest
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
