// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Command workload is the program that the conformance suite runs. It misbehaves in the ways that its arguments request.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/berth-dev/berth/test/reuseport"
)

// modes are the functions that the first argument selects; the other arguments are passed to the function.
var modes = map[string]func(args []string){
	"exit":   func(args []string) { os.Exit(number(args[0])) },
	"signal": func(args []string) { raise(syscall.Signal(number(args[0]))) },
	"sleep":  func([]string) { ready() },
	"ignore": func([]string) {
		signal.Ignore(syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT)
		ready()
	},
	"stopped": func([]string) {
		fmt.Println("ready")
		raise(syscall.SIGSTOP)
	},
	"tree": func(args []string) {
		tree(args[0])
		ready()
	},
	"leave": func(args []string) {
		tree(args[0])
		os.Exit(number(args[1]))
	},
	"branch": func(args []string) { branch(args[0], number(args[1])) },
	"bomb":   func(args []string) { bomb(number(args[0])) },
	"flood":  func([]string) { flood() },
	"count":  func(args []string) { count(number(args[0])) },
	"stdin":  func([]string) { stdin() },
	"env":    func(args []string) { fmt.Printf("%s=%s\n", args[0], os.Getenv(args[0])) },
	"where": func([]string) {
		dir, _ := os.Getwd()
		fmt.Println(dir)
	},
	"results":  func(args []string) { results(args[0]) },
	"bulk":     func(args []string) { leave(strings.Repeat("x", number(args[0]))) },
	"relay":    func(args []string) { relay(args[0]) },
	"binary":   func([]string) { leave("\xff\xfe") },
	"say":      func(args []string) { say(args[0]) },
	"listen":   func([]string) { listen() },
	"terminal": func([]string) { terminal() },
	"menus":    func(args []string) { menus(args[0]) },
	"recorded": func(args []string) { recorded(args[0], args[1:]) },
	"asking":   func([]string) { asking() },
	"ask":      func([]string) { ask() },
}

func main() {
	if len(os.Args) < 2 {
		fail(errors.New("a mode is required"))
	}
	mode, known := modes[os.Args[1]]
	if !known {
		fail(fmt.Errorf("unknown mode %q", os.Args[1]))
	}
	mode(os.Args[2:])
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

// ready prints "ready" and blocks.
func ready() {
	fmt.Println("ready")
	time.Sleep(time.Hour) // longer than any test, but bounded
}

func raise(sig syscall.Signal) {
	if err := syscall.Kill(os.Getpid(), sig); err != nil {
		fail(err)
	}
	time.Sleep(time.Minute)
}

// tree starts three processes that try to escape. Each of them has its own session, ignores SIGTERM, and creates a file pid-N in dir, where N is its PID. The
// first is a child of this process. The second is an orphan, and the third is a child of the second. tree returns when all three are running.
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

// branch with depth 0 blocks. With a larger depth it first starts a branch with depth-1. With depth 2 it then exits, so that its child is orphaned.
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

// flood writes without end and without a newline.
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
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	select {
	case <-ended:
		fmt.Println("stdin closed")
		os.Exit(1)
	case <-time.After(200 * time.Millisecond):
		fmt.Println("stdin open")
	}
}

// listen listens with SO_REUSEPORT, so that other processes of the same user can listen at the same address.
func listen() {
	listener, err := reuseport.Listen(context.Background(), "tcp4", "127.0.0.1:0", false)
	if err != nil {
		fail(err)
	}
	fmt.Println("listening on", listener.Addr())
	time.Sleep(time.Hour)
}
