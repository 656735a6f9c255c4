// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package logfile

import (
	"errors"

	"k8s.io/apimachinery/pkg/types"
)

// Notice reports nothing on this system, so callers have to poll.
type Notice struct{}

// NewNotice returns a Notice that reports nothing.
func NewNotice(func(types.UID)) (*Notice, error) { return &Notice{}, nil }

// Watch returns errors.ErrUnsupported.
func (*Notice) Watch(types.UID, string) error { return errors.ErrUnsupported }

// Close does nothing.
func (*Notice) Close() error { return nil }
