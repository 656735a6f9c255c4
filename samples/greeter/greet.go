// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package main

// greet says hello to somebody.
func greet(name string) string {
	return "hello " + name
}
