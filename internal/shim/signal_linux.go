// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/facts"
)

// ExitOf converts a wait status to an Exit.
func ExitOf(status unix.WaitStatus, at time.Time) *facts.Exit {
	exit := &facts.Exit{Known: true, FinishedAt: at.UTC().Round(0)}
	if status.Signaled() {
		exit.Signal = SignalName(int(status.Signal()))
		return exit
	}
	exit.Code = int32(status.ExitStatus())
	return exit
}

// SignalName returns the name of a signal, such as SIGTERM.
func SignalName(number int) string {
	if name := unix.SignalName(syscall.Signal(number)); name != "" {
		return name
	}
	return "SIG" + strconv.Itoa(number)
}

// SignalNumber returns the number of a signal such as SIGTERM or TERM. It returns false for an unknown name.
func SignalNumber(name string) (syscall.Signal, bool) {
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	number := unix.SignalNum(name)
	return number, number != 0
}
