// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package dockertest

import "fmt"

// Engine is a Docker Engine, which requires Linux.
type Engine struct {
	// Host is the address of the engine in the form of DOCKER_HOST.
	Host string
}

// Start returns ErrUnavailable, because dockerd runs on Linux only.
func Start() (*Engine, error) {
	return nil, fmt.Errorf("%w: dockerd runs on Linux only", ErrUnavailable)
}

// Restart is never called, because Start fails.
func (*Engine) Restart() error { return ErrUnavailable }

// Kill is never called, because Start fails.
func (*Engine) Kill() error { return ErrUnavailable }

// Stop does nothing.
func (*Engine) Stop() error { return nil }
