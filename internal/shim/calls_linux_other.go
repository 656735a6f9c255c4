// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux && !amd64

package shim

// olderCalls are the system calls that newer architectures do not have.
var olderCalls map[int]int
