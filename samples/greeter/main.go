// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Command greeter is a small program to look at with a language server.
package main

import "fmt"

func main() {
	fmt.Println(greet("world"))
}
