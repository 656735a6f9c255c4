// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Command adversary is a program that misbehaves in the way that its argument names. It hurts only what belongs to its own user.
package main

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: adversary BEHAVIOR [ARGUMENT]")
		os.Exit(2)
	}
	argument := ""
	if len(os.Args) > 2 {
		argument = os.Args[2]
	}
	switch os.Args[1] {
	case "bomb":
		bomb()
	case "children":
		children(argument)
	case "flood":
		flood()
	case "sockets":
		sockets(argument)
	case "signals":
		signals()
	case "vandal":
		vandal(argument)
	case "ptrace":
		ptrace(argument)
	case "impostor":
		impostor(argument)
	}
	wait()
}

func wait() {
	for {
		time.Sleep(time.Hour)
	}
}

// bomb forks until it is refused: its limit is below that of its user.
func bomb() {
	limit := &unix.Rlimit{Cur: 400, Max: 400}
	_ = unix.Setrlimit(unix.RLIMIT_NPROC, limit)
	self, _ := os.Executable()
	for {
		child := exec.Command(self, "bomb")
		child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if child.Start() != nil {
			time.Sleep(50 * time.Millisecond)
		}
	}
}

// children starts many short-lived children, each in a session of its own, and reaps only half of them.
func children(count string) {
	many, _ := strconv.Atoi(count)
	for i := range many {
		child := exec.Command("/bin/true")
		child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if child.Start() == nil && i%2 == 0 {
			_ = child.Wait()
		} else if child.Process != nil {
			go func() { _ = child.Wait() }()
		}
	}
}

func flood() {
	line := append(bytes.Repeat([]byte("x\x1b[31m"), 8<<10), '\n')
	for {
		_, _ = os.Stdout.Write(line)
		_, _ = os.Stderr.Write(line)
	}
}

// sockets listens on many ports.
func sockets(count string) {
	many, _ := strconv.Atoi(count)
	_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(many) + 100, Max: uint64(many) + 100}) //nolint:gosec // a small number
	var open []net.Listener
	for range many {
		if listener, err := net.Listen("tcp", "127.0.0.1:0"); err == nil {
			open = append(open, listener)
		}
	}
	fmt.Println("listening on", len(open), "ports")
	wait()
}

// signals sends every signal to its shim, which is its parent, the deadly ones last.
func signals() {
	for number := syscall.Signal(1); number < 32; number++ {
		if number != syscall.SIGKILL && number != syscall.SIGSTOP {
			_ = syscall.Kill(os.Getppid(), number)
		}
	}
	_ = syscall.Kill(os.Getppid(), syscall.SIGSTOP)
	_ = syscall.Kill(os.Getppid(), syscall.SIGKILL)
}

// vandal writes garbage over the records that the state directory has of itself, and removes its other files there.
func vandal(state string) {
	self := fmt.Sprintf(`"pid":%d,`, os.Getpid())
	var own string
	for own == "" { // until its shim has recorded it
		_ = filepath.WalkDir(state, func(path string, entry os.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(path, ".json") {
				if text, err := os.ReadFile(path); err == nil && bytes.Contains(text, []byte(self)) {
					own = filepath.Dir(path)
				}
			}
			return nil
		})
		time.Sleep(100 * time.Millisecond)
	}
	entries, _ := os.ReadDir(own)
	for _, entry := range entries {
		if path := filepath.Join(own, entry.Name()); strings.HasSuffix(path, ".json") {
			_ = os.WriteFile(path, []byte("{\x00garbage"), 0o600)
		} else {
			_ = os.RemoveAll(path)
		}
	}
	fmt.Println("damaged", own)
}

// ptrace tries to hold the processes of a sibling.
func ptrace(name string) {
	for {
		for _, pid := range named(name) {
			if unix.PtraceSeize(pid) == nil {
				_ = unix.PtraceInterrupt(pid)
				fmt.Println("holds", pid)
			}
		}
		time.Sleep(time.Second)
	}
}

// named returns the processes whose command line contains the words.
func named(words string) (found []int) {
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		line, _ := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		if strings.Contains(strings.ReplaceAll(string(line), "\x00", " "), words) {
			found = append(found, pid)
		}
	}
	return found
}

// impostor starts children that look like shims of other objects: by name, by arguments, and by the mark in their environment.
func impostor(victim string) {
	var marks []string
	for _, pid := range named(victim) {
		environ, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		for entry := range bytes.SplitSeq(environ, []byte{0}) {
			if bytes.HasPrefix(entry, []byte("BERTH_MARK=")) {
				marks = append(marks, string(entry))
			}
		}
	}
	for range 20 {
		child := exec.Command("/bin/sleep", "infinity")
		child.Args = []string{"berth-shim", "infinity"}
		child.Env = append(os.Environ(), marks...)
		child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		_ = child.Start()
	}
	_ = os.WriteFile("/proc/self/comm", []byte("berth-shim\n("), 0)
}
