// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Command adversary misbehaves in the way that its argument names. It harms only processes and files of its own user.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
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
	case "parent":
		parent()
	case "flood":
		flood()
	case "sockets":
		sockets(argument)
	case "signals":
		signals(argument)
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

// bomb starts processes, which start processes, until the kernel refuses to fork. The process limit is lowered so that this happens soon. The first
// process reports that the limit was reached.
func bomb() {
	limit := &unix.Rlimit{Cur: 400, Max: 400}
	_ = unix.Setrlimit(unix.RLIMIT_NPROC, limit)
	self, _ := os.Executable()
	for reported := len(os.Args) > 2; ; {
		child := exec.Command(self, "bomb", "again")
		child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		err := child.Start()
		if errors.Is(err, unix.EAGAIN) && !reported {
			reported = true
			fmt.Println("reached the limit of", limit.Cur, "processes")
		}
		if err != nil {
			time.Sleep(50 * time.Millisecond)
		}
	}
}

// children starts many short-lived processes, each in a separate session. Every second process has a parent that exits first, so that the shim has to reap the
// orphan.
func children(count string) {
	many, _ := strconv.Atoi(count)
	self, _ := os.Executable()
	started := 0
	for i := range many {
		child := exec.Command("/bin/true")
		if i%2 == 0 {
			child = exec.Command(self, "parent")
		}
		child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if child.Run() == nil {
			started++
		}
	}
	fmt.Println("started", started, "of", many, "children")
}

// parent starts a child process and exits before that child does.
func parent() {
	child := exec.Command("/bin/sleep", "0.01")
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if child.Start() != nil {
		os.Exit(1)
	}
	os.Exit(0)
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

// signals sends every signal to the shim of this process, which is its parent, with SIGSTOP and SIGKILL last. The shim holds the terminal, so this
// process receives SIGHUP when the shim dies. It ignores SIGHUP, and sends no more signals, because its new parent is not the shim.
func signals(state string) {
	signal.Ignore(unix.SIGHUP)
	waitUntilRecorded(state) // wait for the record of this process: without a record, the manager kills the process after the death of its shim
	shim := os.Getppid()
	send := func(number syscall.Signal) {
		if os.Getppid() == shim {
			_ = syscall.Kill(shim, number)
		}
	}
	for number := syscall.Signal(1); number < 32; number++ {
		if number != syscall.SIGKILL && number != syscall.SIGSTOP {
			send(number)
		}
	}
	send(syscall.SIGSTOP)
	send(syscall.SIGKILL)
}

// vandal damages the files that Berth stores for its process in the state directory: it overwrites the JSON records with garbage and removes the other
// files. It ignores SIGTERM.
func vandal(state string) {
	signal.Ignore(unix.SIGTERM)
	own := waitUntilRecorded(state)
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

// waitUntilRecorded waits until a shim has recorded this process, and returns the directory of the record.
func waitUntilRecorded(state string) (own string) {
	self := fmt.Sprintf(`"pid":%d,`, os.Getpid())
	for own == "" {
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
	return own
}

// ptrace repeatedly tries to attach to the waiting process with the given name. It skips the impostor, whose command line contains the name, too, because a
// stopped impostor attacks nothing. ptrace stays on one thread, because the kernel identifies a tracer by its thread.
func ptrace(victim string) {
	runtime.LockOSThread()
	for {
		for _, pid := range processesNamed("wait " + victim) {
			err := unix.PtraceSeize(pid) // the Linux security module Yama may deny the attempt
			if err == nil {
				err = unix.PtraceInterrupt(pid)
			}
			fmt.Println("tried to hold", pid, err)
		}
		time.Sleep(time.Second)
	}
}

// processesNamed returns the PIDs of the other processes whose command line contains the words.
func processesNamed(words string) (found []int) {
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

// impostor starts children that look like shims of the victim: by name, by arguments, and by the mark in their environment.
func impostor(victim string) {
	mark := ""
	for ; mark == ""; time.Sleep(50 * time.Millisecond) { // the victim may start after this process
		mark = markOf(victim)
	}
	for range 20 {
		child := exec.Command("/bin/sleep", "infinity")
		child.Args = []string{"berth-shim", "infinity"}
		child.Env = append(os.Environ(), mark) // replaces the mark of this process, because exec.Cmd uses the last value of a variable
		child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		_ = child.Start()
	}
	_ = os.WriteFile("/proc/self/comm", []byte("berth-shim\n("), 0)
	fmt.Println("poses with the mark of the victim")
}

// markOf returns the environment entry BERTH_MARK=... of the waiting process with the given name, or an empty string if no such process has one.
func markOf(victim string) string {
	for _, pid := range processesNamed("wait " + victim) {
		environ, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		for entry := range bytes.SplitSeq(environ, []byte{0}) {
			if bytes.HasPrefix(entry, []byte("BERTH_MARK=")) {
				return string(entry)
			}
		}
	}
	return ""
}
