// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/creack/pty"
	"golang.org/x/term"
)

// recorded waits until the directory contains the file "begin". Then it runs a command in a terminal of the same size, and records in the files "written" and "read"
// what the command writes and reads.
func recorded(dir string, command []string) {
	if _, err := term.MakeRaw(0); err != nil {
		fail(fmt.Errorf("stdin is no terminal: %w", err))
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "begin")); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	size, err := pty.GetsizeFull(os.Stdin)
	if err != nil {
		fail(err)
	}
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	cmd := exec.Command(command[0], command[1:]...)
	inner, err := pty.StartWithSize(cmd, size)
	if err != nil {
		fail(err)
	}
	go func() {
		for range resized {
			_ = pty.InheritSize(os.Stdin, inner)
		}
	}()
	go record(filepath.Join(dir, "read"), inner, os.Stdin)
	record(filepath.Join(dir, "written"), os.Stdout, inner)
	_ = cmd.Wait()
}

// record copies a stream, and first to a file.
func record(path string, to io.Writer, from io.Reader) {
	file, err := os.Create(path)
	if err != nil {
		fail(err)
	}
	_, _ = io.Copy(io.MultiWriter(file, to), from)
}
