// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"bufio"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
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

// menus shows two questions with choices, one after the other, and reports the answers. A digit answers at once, as in the menus of coding agents, or it only moves
// the mark. Enter takes the marked choice. same makes the questions equal.
func menus(kind string) {
	if _, err := term.MakeRaw(0); err != nil {
		fail(fmt.Errorf("stdin is no terminal: %w", err))
	}
	commands := []string{"make deploy", "drop database"}
	if kind == "same" {
		commands[1] = commands[0]
	}
	var answers []string
	for _, command := range commands {
		answers = append(answers, menu(command, kind != "confirm"))
		fmt.Printf("\x1b[2J\x1b[Hanswers %s\r\n", strings.Join(answers, ", "))
	}
	ready()
}

// menu shows one question and returns the answer.
func menu(command string, atOnce bool) string {
	for marked := byte('1'); ; {
		fmt.Printf("\x1b[H\x1b[JCommand: %s\r\n\r\nDo you want to proceed?\r\n", command)
		for _, choice := range []string{"1. Yes", "2. No"} {
			mark := " "
			if choice[0] == marked {
				mark = "❯"
			}
			fmt.Printf(" %s %s\r\n", mark, choice)
		}
		var keys [1]byte
		if n, err := os.Stdin.Read(keys[:]); err != nil || n == 0 {
			os.Exit(0)
		}
		switch key := keys[0]; key {
		case '\r':
			return fmt.Sprintf("%c by Enter", marked)
		case '1', '2':
			if marked = key; atOnce {
				return fmt.Sprintf("%c by %c", key, key)
			}
		}
	}
}

// modesSet sets modes as full-screen programs and agents do: keyboard (kitty protocol, modifyOtherKeys), focus, bracketed paste, mouse, cursor keys, alternate screen,
// scroll region.
const modesSet = "\x1b[>1u\x1b[>4;2m\x1b[?1004h\x1b[?2004h\x1b[?1000h\x1b[?1006h\x1b[?1h\x1b[?1049h\x1b[5;10r"

// asking sets modes and asks its terminal for the identity, the position of the cursor and the state. It asks again after the key a, prints 600 KiB after the key f,
// and reports everything that it has read after the key p. No answer contains these letters.
func asking() {
	if _, err := term.MakeRaw(0); err != nil {
		fail(fmt.Errorf("stdin is no terminal: %w", err))
	}
	questions, keys, read := 0, [1]byte{}, ""
	ask := func() {
		questions++
		fmt.Printf("\x1b[6;1Habc\x1b[6n\x1b[c\x1b[5n asked %d\r\n", questions)
	}
	fmt.Print(modesSet)
	ask()
	for {
		if n, err := os.Stdin.Read(keys[:]); err != nil || n == 0 {
			os.Exit(0)
		}
		switch key := keys[0]; key {
		case 'a':
			ask()
		case 'f':
			fmt.Print(strings.Repeat(strings.Repeat("flood ", 16)+"\r\n", 6<<10), "flooded\r\n")
		case 'p':
			fmt.Printf("%d: %q.\r\n", questions, read)
		default:
			read += string(key)
		}
	}
}

func size() {
	if w, err := unix.IoctlGetWinsize(0, unix.TIOCGWINSZ); err == nil {
		fmt.Printf("size %dx%d\n", w.Col, w.Row)
	}
}
