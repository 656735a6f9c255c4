// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package controlplane

import "errors"

func freeSpace(string) (int64, error) { return 0, errors.ErrUnsupported }
