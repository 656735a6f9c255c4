// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package vdso steps the wall clock of single processes.
package vdso
