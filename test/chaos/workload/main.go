// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Command workload is the misbehaving program of the chaos test. It also detects a second incarnation of the same object: until it exits, each
// program holds a lock that is named after its object. If the lock is not free at its start, an older incarnation is still alive, and the program
// records this in the file violations. The descendants of a program share a second lock, so that the next incarnation detects descendants that are
// still alive.
package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) < 2 || os.Getenv("CHAOS_DIR") == "" {
		fmt.Fprintln(os.Stderr, "this program is for the chaos test only")
		os.Exit(2)
	}
	behaviors := os.Args[2:]
	handleSignals(slices.Contains(behaviors, "stubborn"))
	switch os.Args[1] {
	case "leader":
		runLeader(behaviors)
	case "descendant":
		lockTree()
	case "short-lived":
		lockTree()
		time.Sleep(10 * time.Millisecond)
		return
	case "fork": // exits immediately after the start of its child, so that the child is orphaned
		lockTree()
		start(true, append([]string{"descendant"}, behaviors...)...)
		return
	}
	runUntilKilled()
}

// handleSignals makes the process exit on SIGTERM and SIGHUP. If stubborn is true, the process has no reaction to them. A stubborn process catches the signals
// instead of ignoring them, because its children would inherit ignored signals.
func handleSignals(stubborn bool) {
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		for range term {
			if !stubborn {
				os.Exit(0)
			}
		}
	}()
}

// runUntilKilled runs until the process is killed or the test has cleaned up.
func runUntilKilled() {
	for {
		time.Sleep(2 * time.Second)
		if _, err := os.Stat(os.Getenv("CHAOS_DIR")); err != nil {
			os.Exit(0)
		}
	}
}

func runLeader(behaviors []string) {
	if held := lock("", syscall.LOCK_EX); held != nil {
		note("starts", ".") // the size of the file is the number of starts
	}
	// The exclusive lock shows that no descendant of an older incarnation is alive. Release it, because the new descendants take a shared lock
	// on the same file.
	if tree := lock(".tree", syscall.LOCK_EX); tree != nil {
		_ = tree.Close()
	}
	if port := os.Getenv("PORT"); port != "" {
		serve(port)
	}
	for _, behavior := range behaviors {
		switch behavior {
		case "setsid":
			start(true, "descendant")
		case "daemon":
			if child := start(false, "fork"); child != nil {
				_ = child.Wait()
			}
		case "stubborn-descendant":
			start(true, "descendant", "stubborn")
		case "flood":
			go writeForever()
		case "forks":
			go startShortChildren()
		case "exits":
			time.Sleep(100 * time.Millisecond)
			os.Exit(0)
		}
	}
}

// lockTree takes the lock that all descendants of the leader share.
func lockTree() {
	lock(".tree", syscall.LOCK_SH)
}

// heldLocks references the lock files, so that the garbage collector does not close them.
var heldLocks []*os.File

// lock takes a lock of this object and holds it until this process exits or calls exec. If the lock is not free, lock records a violation and returns
// nil.
func lock(suffix string, how int) *os.File {
	name := os.Getenv("CHAOS_NAME") + suffix
	file, err := os.OpenFile(filepath.Join(os.Getenv("CHAOS_DIR"), "locks", name), os.O_CREATE|os.O_RDWR, 0o600)
	if errors.Is(err, os.ErrNotExist) {
		os.Exit(0) // the test has cleaned up
	}
	if err == nil {
		err = syscall.Flock(int(file.Fd()), how|syscall.LOCK_NB)
	}
	if err != nil {
		holder, _ := os.ReadFile(filepath.Join(os.Getenv("CHAOS_DIR"), "locks", name))
		note("violations", fmt.Sprintf("%s %s: %s is not alone: lock %q: %v; its last holder was %s\n",
			time.Now().Format("15:04:05.000"), selfDescription(), strings.Join(os.Args[1:], " "), name, err, holder))
		return nil
	}
	if how == syscall.LOCK_EX {
		_ = file.Truncate(0)
		_, _ = file.WriteAt([]byte(selfDescription()), 0)
	}
	heldLocks = append(heldLocks, file)
	return file
}

func selfDescription() string {
	return fmt.Sprintf("%s life %s revision %s (process %d)", os.Getenv("CHAOS_NAME"), os.Getenv("CHAOS_LIFE"), os.Getenv("CHAOS_REVISION"), os.Getpid())
}

// note appends to a file in one write.
func note(name, text string) {
	file, err := os.OpenFile(filepath.Join(os.Getenv("CHAOS_DIR"), name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return
	}
	_, _ = file.WriteString(text)
	_ = file.Close()
}

func start(session bool, args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: session}
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return nil
	}
	return cmd
}

// serve answers every request with an empty page.
func serve(port string) {
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", port))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Printf("http://127.0.0.1:%s/\n", port)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				continue
			}
			go answer(conn)
		}
	}()
}

func answer(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := conn.Read(make([]byte, 4096)); err == nil {
		_, _ = conn.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"))
	}
}

// writeForever writes several megabytes per second without a line break, even when the disk is full.
func writeForever() {
	chunk := []byte(strings.Repeat("x", 32<<10))
	for {
		_, _ = os.Stdout.Write(chunk)
		time.Sleep(10 * time.Millisecond)
	}
}

// startShortChildren starts short-lived children continuously.
func startShortChildren() {
	for {
		if child := start(false, "short-lived"); child != nil {
			go func() { _ = child.Wait() }()
		}
		time.Sleep(40 * time.Millisecond)
	}
}
