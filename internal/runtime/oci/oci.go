// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package oci converts error messages of container runtimes to a facts.StartError, and explains exit codes above 128. The backends for Docker and Pods use it.
package oci

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
)

// Signals are the signal numbers of Linux, because containers run on Linux even if the manager runs on another system.
var Signals = map[string]int{
	"SIGHUP": 1, "SIGINT": 2, "SIGQUIT": 3, "SIGABRT": 6, "SIGKILL": 9, "SIGUSR1": 10, "SIGUSR2": 12, "SIGTERM": 15,
}

// EndedBy reports whether the exit code is the one of a program that the signal terminated. A program can also exit with this code by itself.
func EndedBy(code int, signal string) bool {
	n, known := Signals[signal]
	return known && code == 128+n
}

// SignalHint returns a message about the signal that an exit code may represent, or "" if the code represents no signal.
func SignalHint(code int) string {
	for name := range Signals {
		if EndedBy(code, name) {
			return fmt.Sprintf("exit code %d: either %s terminated the program, or the program exited with this code", code, name)
		}
	}
	return ""
}

// Failed returns a StartError with the reason StartFailed.
func Failed(format string, args ...any) *facts.StartError {
	return &facts.StartError{Reason: v1alpha1.ReasonStartFailed, Message: fmt.Sprintf(format, args...)}
}

// Refusal returns why a program could not be executed, according to the message of a container runtime, or nil if the message does not state a cause. It parses the
// message because container runtimes return no error code. The program is "" if the image determines it; path is the value of PATH, or "" if it is unknown.
func Refusal(said, program, path string) *facts.StartError {
	has := Mentions(said)
	switch {
	case has("chdir to cwd", "working directory", "mkdir-ing cwd", "container init: mkdir "):
		return NoDirectory(said)
	case has("exec: ", "exec user process", "stat ") && has("executable file not found", "no such file or directory"):
		if program == "" {
			return ofImage(v1alpha1.ReasonCommandNotFound, said)
		}
		return NotFound(program, path)
	case has("exec: ", "exec user process") && has("permission denied", "is a directory"):
		if program == "" {
			return ofImage(v1alpha1.ReasonPermissionDenied, said)
		}
		return NotPermitted(program)
	}
	return nil
}

// NoCommand returns the StartError for an image that does not name a program, if the spec names none either.
func NoCommand(image string) *facts.StartError {
	return &facts.StartError{Reason: v1alpha1.ReasonCommandNotFound,
		Message: fmt.Sprintf("image %q has neither an entrypoint nor a command; set spec.process.command, or use another image", image)}
}

// ofImage returns why the entrypoint of an image could not be executed.
func ofImage(reason, said string) *facts.StartError {
	return &facts.StartError{Reason: reason, Message: "the entrypoint of the image cannot be executed; set spec.process.command, or use another image: " + said}
}

// Mentions returns a function that reports whether the message contains one of the texts, in upper or lower case.
func Mentions(said string) func(texts ...string) bool {
	said = strings.ToLower(said)
	return func(texts ...string) bool {
		return slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(said, text) })
	}
}

// NoDirectory returns the StartError for a missing working directory.
func NoDirectory(said string) *facts.StartError {
	return &facts.StartError{Reason: v1alpha1.ReasonWorkingDirMissing, Message: "spec.process.workingDir is not a directory in the container: " + said}
}

// NotFound returns the StartError for a missing program. path is the value of PATH, or "" if it is unknown.
func NotFound(program, path string) *facts.StartError {
	e := &facts.StartError{Reason: v1alpha1.ReasonCommandNotFound}
	if strings.Contains(program, "/") {
		e.Message = fmt.Sprintf("%s, or the interpreter that it names, does not exist in the container; correct spec.process.command, or use an image that has it", program)
		return e
	}
	where := "its PATH"
	if path != "" {
		where = "PATH=" + path
	}
	e.Message = fmt.Sprintf("%q was not found in the container in %s; correct spec.process.command, or use an image that has it", program, where)
	return e
}

// NotPermitted returns the StartError for a program that is not executable.
func NotPermitted(program string) *facts.StartError {
	return &facts.StartError{Reason: v1alpha1.ReasonPermissionDenied,
		Message: fmt.Sprintf("%q is not an executable file in the container; correct spec.process.command or the mode of the file", program)}
}
