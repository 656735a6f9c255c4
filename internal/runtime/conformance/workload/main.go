// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Command workload is what the conformance suite runs: a program that behaves as badly as it is asked to.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) < 2 {
		fail(errors.New("a mode is needed"))
	}
	mode, args := os.Args[1], os.Args[2:]
	switch mode {
	case "exit":
		os.Exit(number(args[0]))
	case "signal":
		raise(syscall.Signal(number(args[0])))
	case "sleep":
		ready()
	case "ignore":
		signal.Ignore(syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT)
		ready()
	case "stopped":
		fmt.Println("ready")
		raise(syscall.SIGSTOP)
		select {}
	case "tree":
		tree(args[0])
		ready()
	case "leave":
		tree(args[0])
		os.Exit(number(args[1]))
	case "branch":
		branch(args[0], number(args[1]))
	case "flood":
		flood()
	case "count":
		count(number(args[0]))
	case "stdin":
		stdin()
	case "env":
		fmt.Printf("%s=%s\n", args[0], os.Getenv(args[0]))
	case "where":
		dir, _ := os.Getwd()
		fmt.Println(dir)
	case "listen":
		listen()
	case "terminal":
		terminal()
	default:
		fail(fmt.Errorf("there is no mode %q", mode))
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "workload:", err)
	os.Exit(99)
}

func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		fail(err)
	}
	return n
}

// ready says so and stays until it is ended.
func ready() {
	fmt.Println("ready")
	select {
	case <-time.After(time.Hour): // no test takes as long: nothing is left for ever
	}
}

func raise(sig syscall.Signal) {
	if err := syscall.Kill(os.Getpid(), sig); err != nil {
		fail(err)
	}
	time.Sleep(time.Minute)
}

// tree starts three processes that try to get away: one in a session of its own that ignores SIGTERM, and one whose parent has ended,
// with a child. Their PIDs are in files of the directory once they are there.
func tree(dir string) {
	start(true, "branch", dir, "0")
	start(true, "branch", dir, "2")
	for len(pids(dir)) < 3 {
		time.Sleep(time.Millisecond)
	}
}

func pids(dir string) []string {
	found, _ := filepath.Glob(filepath.Join(dir, "pid-*"))
	return found
}

// branch with depth 0 stays; with a depth it starts the next and, at the first, ends, so that the rest loses its parent.
func branch(dir string, depth int) {
	signal.Ignore(syscall.SIGTERM, syscall.SIGHUP)
	if depth > 0 {
		start(true, "branch", dir, strconv.Itoa(depth-1))
		if depth == 2 {
			return
		}
	}
	name := filepath.Join(dir, "pid-"+strconv.Itoa(os.Getpid()))
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		fail(err)
	}
	time.Sleep(time.Hour)
}

func start(session bool, args ...string) {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: session}
	if err := cmd.Start(); err != nil {
		fail(err)
	}
	go func() { _ = cmd.Wait() }()
}

// flood writes without an end and without a newline.
func flood() {
	block := []byte(strings.Repeat("y", 64<<10))
	for {
		if _, err := os.Stdout.Write(block); err != nil {
			fail(err)
		}
	}
}

func count(n int) {
	w := bufio.NewWriterSize(os.Stdout, 4<<10)
	for i := range n {
		_, _ = fmt.Fprintf(w, "line %09d\n", i)
	}
	if err := w.Flush(); err != nil {
		fail(err)
	}
	ready()
}

func stdin() {
	ended := make(chan error, 1)
	go func() { _, err := io.Copy(io.Discard, os.Stdin); ended <- err }()
	select {
	case <-ended:
		fmt.Println("stdin closed")
		os.Exit(1)
	case <-time.After(200 * time.Millisecond):
		fmt.Println("stdin open")
	}
}

func listen() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fail(err)
	}
	fmt.Println("listening on", listener.Addr())
	time.Sleep(time.Hour)
}
