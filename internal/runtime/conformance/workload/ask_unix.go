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
)

// ask prints a prompt without a newline, as agents do, and prints it again after each answer, after an interrupt, and when its terminal is resized.
func ask() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGWINCH)
	answers := make(chan string)
	go func() {
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			answers <- lines.Text()
		}
		close(answers)
	}()
	fmt.Println("begun")
	for {
		fmt.Print("Continue? [y/N] ")
		select {
		case is := <-signals:
			if is == syscall.SIGINT {
				fmt.Println("interrupted")
			} else {
				fmt.Print("\r")
			}
		case answer, more := <-answers:
			switch {
			case !more:
				return
			case answer == "y":
				fmt.Println("goes on")
				ready()
			}
			fmt.Printf("answered <%s>\n", answer)
		}
	}
}
