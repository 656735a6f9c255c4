// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package logfile

import (
	"errors"

	"k8s.io/apimachinery/pkg/types"
)

// Notice tells nothing here: whoever wants to know has to look from time to time.
type Notice struct{}

// NewNotice gives one that tells nothing.
func NewNotice(func(types.UID)) (*Notice, error) { return &Notice{}, nil }

// Watch says what this system lacks.
func (*Notice) Watch(types.UID, string) error { return errors.ErrUnsupported }

// Close has nothing to end.
func (*Notice) Close() error { return nil }
