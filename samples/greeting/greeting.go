// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package greeting greets: it is a module to check, with something to find.
package greeting

// Hello greets somebody by name, or everybody.
func Hello(name string) string {
	if name == "" {
		name = "everybody"
	}
	return "Hello, " + name + "!"
}

func Goodbye(name string) string {
	// FIXME: everybody leaves, too.
	return "Goodbye, " + name + "!"
}
