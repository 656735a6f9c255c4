// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package shim

// access only calls f. It need not apply the rights of the user, because programs are executed only on Linux.
func (*User) access(f func()) error {
	f()
	return nil
}
