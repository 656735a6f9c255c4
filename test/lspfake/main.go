// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Command lspfake is a language server with scripted faults. It computes its answers from the texts that it has received, so that tests detect an
// answer for the wrong text. It records the messages that it receives in a journal. See package script.
package main

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/berth-dev/berth/test/lspfake/script"
)

var (
	dir    = flag.String("dir", "", "directory of the script and of the files that the server writes")
	name   = flag.String("name", "fake", "name that only one running server may have")
	linger = flag.Bool("linger", false, "ignore all signals and keep running, as an orphaned child of a server")
)

func main() {
	flag.Parse()
	if *dir == "" {
		fail(2, errors.New("-dir is missing"))
	}
	signals := make(chan os.Signal, 64)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGPIPE)
	note("starts", "")
	lock := lockName()
	if *linger {
		for s := range signals {
			note("signals", s.String())
		}
	}
	plan, err := script.Read(*dir, *name)
	if err != nil {
		fail(2, err)
	}
	if plan.Fails > 0 && startCount() > plan.Fails {
		plan.Start = ""
	}
	if plan.Start == script.StartIgnoreTERM {
		plan.IgnoreTERM, plan.IgnoreEOF = true, true
	}
	go handleSignals(signals, plan.IgnoreTERM)
	s := newServer(plan, os.Stdin, os.Stdout)
	s.journal(script.Line{What: script.Started})
	if plan.Child {
		startChild(false)
	}
	ballast := make([]byte, plan.Ballast<<20)
	for i := 0; i < len(ballast); i += 4096 {
		ballast[i] = 1
	}
	failStart(plan.Start)
	s.serve()
	_ = lock.Close()
	_ = ballast
}

// handleSignals records signals and exits on the first one, unless ignore is set.
func handleSignals(signals <-chan os.Signal, ignore bool) {
	for s := range signals {
		if s == syscall.SIGPIPE {
			continue
		}
		note("signals", s.String())
		if !ignore {
			os.Exit(143)
		}
	}
}

// failStart carries out the start faults that happen before the server reads anything.
func failStart(where string) {
	switch where {
	case script.StartExit:
		fail(7, errors.New("exits before it reads anything, as planned"))
	case script.StartGarbage:
		for range 4096 {
			_, _ = fmt.Println("this is no language server, but it has very much to say")
		}
		blockForever()
	case script.StartOversize:
		_, _ = fmt.Print("Content-Length: 1099511627776\r\n\r\n{")
		blockForever()
	case script.StartFork:
		startChild(true)
		fail(8, errors.New("leaves a child behind, as planned"))
	case script.StartCloseStdout:
		_ = os.Stdout.Close()
		blockForever()
	}
}

// blockForever never returns. A goroutine handles signals.
func blockForever() {
	for {
		time.Sleep(time.Hour)
	}
}

// startChild starts a child process that only SIGKILL terminates. If pipes is true, the child inherits stdin, stdout and stderr of the server.
func startChild(pipes bool) {
	self, err := os.Executable()
	if err == nil {
		child := exec.Command(self, "-dir", *dir, "-name", *name+".child", "-linger")
		child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if pipes {
			child.Stdin, child.Stdout, child.Stderr = os.Stdin, os.Stdout, os.Stderr
		}
		err = child.Start()
	}
	if err != nil {
		fail(4, err)
	}
}

// note appends a line in one write, so that lines of several processes do not mix.
func note(file, what string) {
	if err := appendTo(filepath.Join(*dir, file), fmt.Appendf(nil, "%s %d %s\n", *name, os.Getpid(), what)); err != nil {
		fail(3, err)
	}
}

func appendTo(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}

// startCount returns how often a server of this name was started, including this start.
func startCount() (n int) {
	f, err := os.Open(filepath.Join(*dir, "starts"))
	if err != nil {
		fail(3, err)
	}
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if bytes.HasPrefix(lines.Bytes(), []byte(*name+" ")) {
			n++
		}
	}
	return n
}

// lockName takes the lock that is named after -name, and holds it until the process exits. If another process holds the lock, lockName records a violation.
func lockName() *os.File {
	f, err := os.OpenFile(filepath.Join(*dir, *name+".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	if err != nil {
		note("violations", "is not alone: "+err.Error())
	}
	return f
}

func fail(code int, err error) {
	_, _ = fmt.Fprintln(os.Stderr, "lspfake:", err)
	os.Exit(code)
}
