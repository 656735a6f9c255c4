// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package greeting returns greetings. It is a module to check, with two problems to find.
package greeting

// Hello returns a greeting for name, or for everybody if name is empty.
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
