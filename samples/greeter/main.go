// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Command greeter is a small program to try a language server with.
package main

import "fmt"

func main() {
	fmt.Println(greet("world"))
}
