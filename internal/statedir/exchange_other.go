// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package statedir

import "os"

func exchange(from, to string) error { return os.Rename(from, to) }
