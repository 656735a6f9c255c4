// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package main

// greet returns a greeting for name.
func greet(name string) string {
	return "hello " + name
}
