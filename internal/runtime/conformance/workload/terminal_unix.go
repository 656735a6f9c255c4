// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"bufio"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// terminal answers each line, and prints the size whenever it changes.
func terminal() {
	if _, err := unix.IoctlGetWinsize(0, unix.TIOCGWINSZ); err != nil {
		fail(fmt.Errorf("stdin is no terminal: %w", err))
	}
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	size()
	fmt.Println("ready")
	go func() {
		for range resized {
			size()
		}
	}()
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		if lines.Text() == "bye" {
			fmt.Println("farewell")
			os.Exit(5)
		}
		fmt.Printf("got <%s>\n", lines.Text())
	}
}

func size() {
	if w, err := unix.IoctlGetWinsize(0, unix.TIOCGWINSZ); err == nil {
		fmt.Printf("size %dx%d\n", w.Col, w.Row)
	}
}
