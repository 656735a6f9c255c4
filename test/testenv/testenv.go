// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package testenv contains helpers for the test suites that use a real API server.
package testenv

import (
	"os"
	"path/filepath"

	"go.uber.org/goleak"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// New returns a control plane with the kinds of Berth. The caller has to start it. root is the path of the project relative to the directory of the test.
func New(root string) *envtest.Environment {
	environment := &envtest.Environment{
		CRDDirectoryPaths:     []string{filepath.Join(root, "config", "crd", "bases")},
		ErrorIfCRDPathMissing: true,
	}
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		environment.BinaryAssetsDirectory = filepath.Join(root, "bin")
	}
	return environment
}

// CheckLeaks returns an error that lists the goroutines that did not exist at the time of before. It ignores the goroutines of idle connections, of logging and
// of signal handling, because these exit later or never.
func CheckLeaks(before goleak.Option) error {
	return goleak.Find(before,
		goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"),
		goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"),
		goleak.IgnoreAnyFunction("golang.org/x/net/http2.(*clientConnReadLoop).run"),
		goleak.IgnoreAnyFunction("net/http.(*http2clientConnReadLoop).run"),
		goleak.IgnoreAnyFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"),
		goleak.IgnoreAnyFunction("os/signal.loop"),
		goleak.IgnoreAnyFunction("github.com/onsi/ginkgo/v2/internal/interrupt_handler.(*InterruptHandler).registerForInterrupts.func2"),
	)
}
