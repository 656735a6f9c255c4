// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Command workload is the program that the race specs run. It records its start, its exit, the signals that it received, and whether another process with
// its name was running. It appends these records to files that several processes share.
package main

import (
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/gorilla/websocket"
	"golang.org/x/sys/unix"
)

var (
	dir    = flag.String("dir", "", "directory of the files that the program writes")
	name   = flag.String("name", "", "name that only one running process may have; empty: no check")
	serve  = flag.Bool("serve", false, "answer HTTP on the port in PORT")
	host   = flag.String("host", "127.0.0.1", "address to listen on")
	listen = flag.Int("listen", 0, "also answer HTTP on this port")
	gate   = flag.String("gate", "", "answer 503 until this file exists")
	ignore = flag.Bool("ignore", false, "keep running after SIGTERM, SIGINT and SIGHUP")
	until  = flag.String("until", "", "keep running after a signal until this file exists")
	slow   = flag.Duration("slow", 0, "how long to keep running after a signal")
	child  = flag.Bool("child", false, "start a child in a separate session that keeps running after SIGTERM")
	lines  = flag.Int("lines", 0, "print this many numbered lines")
	code   = flag.Int("exit", -1, "exit immediately with this code; negative: keep running")
	after  = flag.String("after", "", "with -exit, wait until this file exists or a signal arrives before exiting")
)

func main() {
	flag.Parse()
	if *dir == "" {
		fmt.Fprintln(os.Stderr, "workload: -dir is missing")
		os.Exit(2)
	}
	signals := make(chan os.Signal, 64)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP)
	note("starts", "")
	lock := lockName()
	if *code >= 0 {
		waitForGate(signals)
		note("ends", "")
		os.Exit(*code)
	}
	if *child {
		startChild()
	}
	if *serve {
		answer(os.Getenv("PORT"))
	}
	if *listen > 0 {
		answer(fmt.Sprint(*listen))
	}
	for i := range *lines {
		fmt.Printf("line %06d\n", i)
	}
	wait(signals)
	note("ends", "")
	_ = lock.Close()
}

// note appends a line in one write, so that lines of several processes never mix.
func note(file, what string) {
	f, err := os.OpenFile(filepath.Join(*dir, file), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = fmt.Fprintf(f, "%s %d %s\n", *name, os.Getpid(), what)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "workload:", err)
		os.Exit(3)
	}
}

// lockName takes the lock that is named after -name and holds it until the process exits. Without -name there is no lock. If another process holds the lock,
// lockName records a violation.
func lockName() *os.File {
	if *name == "" {
		return nil
	}
	f, err := os.OpenFile(filepath.Join(*dir, *name+".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		note("violations", "is not alone: "+err.Error()+"; "+holder(f))
	}
	return f
}

// holder describes the process that holds the lock of a file, for the message of a failed row. A forked child may hold the lock too.
func holder(f *os.File) string {
	var stat unix.Stat_t
	if f == nil || unix.Fstat(int(f.Fd()), &stat) != nil {
		return "the holder is unknown"
	}
	locks, _ := os.ReadFile("/proc/locks")
	for line := range strings.Lines(string(locks)) {
		fields := strings.Fields(line) // 1: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE 0 EOF
		if len(fields) < 6 || !strings.HasSuffix(fields[5], fmt.Sprintf(":%d", stat.Ino)) {
			continue
		}
		name, _ := os.ReadFile("/proc/" + fields[4] + "/comm")
		return "held by process " + fields[4] + " " + strings.TrimSpace(string(name))
	}
	return "the holder has released it"
}

// waitForGate waits until the file that -after names exists or a signal arrives. Without -after it does not wait.
func waitForGate(signals <-chan os.Signal) {
	for *after != "" {
		if _, err := os.Stat(*after); err == nil {
			return
		}
		select {
		case <-signals:
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func startChild() {
	self, err := os.Executable()
	if err == nil {
		command := exec.Command(self, "-dir", *dir, "-name", *name+".child", "-ignore")
		command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		err = command.Start()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "workload:", err)
		os.Exit(4)
	}
}

// answer serves HTTP on a port. Responses contain the PID of this process. While the file that -gate names does not exist, all responses have the status 503.
func answer(port string) {
	listener, err := net.Listen("tcp", net.JoinHostPort(*host, port))
	if err != nil {
		note("collisions", err.Error())
		os.Exit(5)
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if *gate != "" {
			if _, err := os.Stat(*gate); err != nil {
				note("refusals", "")
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
		}
		if websocket.IsWebSocketUpgrade(r) {
			echo(w, r)
			return
		}
		_, _ = fmt.Fprintln(w, os.Getpid())
	})
	go func() { _ = http.Serve(listener, handler) }() //nolint:gosec // a test talks to it
}

// echo sends every message that it receives over a WebSocket back to the sender.
func echo(w http.ResponseWriter, r *http.Request) {
	conn, err := (&websocket.Upgrader{CheckOrigin: func(*http.Request) bool { return true }}).Upgrade(w, r, nil)
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	for {
		kind, text, err := conn.ReadMessage()
		if err != nil || conn.WriteMessage(kind, text) != nil {
			return
		}
	}
}

// wait returns when the process has to exit.
func wait(signals <-chan os.Signal) {
	var end, look <-chan time.Time
	for {
		select {
		case s := <-signals:
			note("signals", s.String())
			switch {
			case *ignore || end != nil || look != nil:
			case *until != "":
				look = time.Tick(20 * time.Millisecond)
			default:
				end = time.After(*slow)
			}
		case <-look:
			if _, err := os.Stat(*until); err == nil {
				return
			}
		case <-end:
			return
		}
	}
}
