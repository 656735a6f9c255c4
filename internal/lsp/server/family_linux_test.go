// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// catchSignals delivers SIGTERM and SIGHUP to a channel, so that their default action does not happen.
func catchSignals() chan os.Signal {
	notified := make(chan os.Signal, 10)
	signal.Notify(notified, syscall.SIGTERM, syscall.SIGHUP)
	return notified
}

// runWithChild starts a process that has its own session, ignores SIGTERM and keeps all streams open. In the mode "orphan" the parent of that process has
// already exited.
func runWithChild(mode string) {
	if os.Getenv("MIDDLE") != "" {
		fmt.Println(spawn("grandchild"))
		os.Exit(0)
	}
	if mode == "orphan" {
		_ = os.Setenv("MIDDLE", "yes")
		pid := spawn("orphan")
		var status syscall.WaitStatus
		_, _ = syscall.Wait4(pid, &status, 0, nil)
	} else {
		fmt.Println(spawn("grandchild"))
	}
	_, _ = io.ReadAll(os.Stdin)
	os.Exit(4)
}

func spawn(mode string) int {
	_ = os.Setenv(modeVariable, mode)
	pid, err := syscall.ForkExec(os.Args[0], os.Args, &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		panic(err)
	}
	return pid
}
