// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package shim

import "os"

func replace(from, to string, _ bool) error { return os.Rename(from, to) }
