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
	habits := os.Args[2:]
	heedSignals(slices.Contains(habits, "stubborn"))
	switch os.Args[1] {
	case "lead":
		lead(habits)
	case "kin":
		join()
	case "nap":
		join()
		time.Sleep(10 * time.Millisecond)
		return
	case "fork": // exits immediately after the start of its child, so that the child is orphaned
		join()
		start(true, append([]string{"kin"}, habits...)...)
		return
	}
	live()
}

// heedSignals makes the process exit on SIGTERM and SIGHUP, or have no reaction to them if stubborn is true. A stubborn process catches the signals
// instead of ignoring them, because its children would inherit ignored signals.
func heedSignals(stubborn bool) {
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

// live runs until the process is killed or the test has cleaned up.
func live() {
	for {
		time.Sleep(2 * time.Second)
		if _, err := os.Stat(os.Getenv("CHAOS_DIR")); err != nil {
			os.Exit(0)
		}
	}
}

func lead(habits []string) {
	if held := lock("", syscall.LOCK_EX); held != nil {
		note("starts", ".") // the size of the file is the number of starts
	}
	// The exclusive lock shows that no descendant of an older incarnation is alive. Release it, because the new descendants share this lock.
	if tree := lock(".tree", syscall.LOCK_EX); tree != nil {
		_ = tree.Close()
	}
	if port := os.Getenv("PORT"); port != "" {
		serve(port)
	}
	for _, habit := range habits {
		switch habit {
		case "setsid":
			start(true, "kin")
		case "daemon":
			if child := start(false, "fork"); child != nil {
				_ = child.Wait()
			}
		case "stubbornkin":
			start(true, "kin", "stubborn")
		case "flood":
			go flood()
		case "forks":
			go forks()
		case "exits":
			time.Sleep(100 * time.Millisecond)
			os.Exit(0)
		}
	}
}

// join takes the lock that all descendants of the leader share.
func join() {
	lock(".tree", syscall.LOCK_SH)
}

// keep references the lock files, so that the garbage collector does not close them.
var keep []*os.File

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
			time.Now().Format("15:04:05.000"), me(), strings.Join(os.Args[1:], " "), name, err, holder))
		return nil
	}
	if how == syscall.LOCK_EX {
		_ = file.Truncate(0)
		_, _ = file.WriteAt([]byte(me()), 0)
	}
	keep = append(keep, file)
	return file
}

func me() string {
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

// flood writes several megabytes per second without a line break, even when the disk is full.
func flood() {
	chunk := []byte(strings.Repeat("x", 32<<10))
	for {
		_, _ = os.Stdout.Write(chunk)
		time.Sleep(10 * time.Millisecond)
	}
}

// forks starts short-lived children continuously.
func forks() {
	for {
		if child := start(false, "nap"); child != nil {
			go func() { _ = child.Wait() }()
		}
		time.Sleep(40 * time.Millisecond)
	}
}
