// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/moby/moby/api/types/container"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
)

// refusal returns a StartError if a retry of the failed start would fail in the same way, or nil if a retry may succeed.
func (r *Runtime) refusal(ctx context.Context, id string, err error) *facts.StartError {
	c, failed := r.inspect(ctx, id)
	if failed != nil || c == nil || c.Config == nil {
		return classify(err.Error(), nil, nil)
	}
	return classify(err.Error(), argv(c), c.Config.Env)
}

// refused does the same as refusal for a container whose start failed while no manager waited for the result.
func refused(c *container.InspectResponse) *facts.StartError {
	if c.State.Error == "" || isAlive(c.State.Status) || !when(c.State.StartedAt).IsZero() || c.Config == nil {
		return nil
	}
	return classify(c.State.Error, argv(c), c.Config.Env)
}

func argv(c *container.InspectResponse) []string {
	return append(append([]string{}, c.Config.Entrypoint...), c.Config.Cmd...)
}

// classify returns a StartError if the message of the engine shows that a retry would fail too. It parses the message because engines return no error code.
func classify(said string, command, env []string) *facts.StartError {
	low := strings.ToLower(said)
	has := func(words ...string) bool {
		for _, word := range words {
			if strings.Contains(low, word) {
				return true
			}
		}
		return false
	}
	switch {
	case has("chdir to cwd", "working directory", "mkdir-ing cwd", "container init: mkdir "):
		return &facts.StartError{Reason: v1alpha1.ReasonWorkingDirMissing,
			Message: "spec.process.workingDir is not a directory in the container: " + said}
	case has("exec: ", "exec user process", "stat ") && has("executable file not found", "no such file or directory"):
		return notFound(command, env)
	case has("exec: ", "exec user process") && has("permission denied", "is a directory"):
		return notPermitted(command)
	case has("no space left", "resource temporarily unavailable", "too many open files", "cannot allocate memory", "timeout"):
		return nil
	case has("oci runtime create failed", "unable to find user", "no matching entries in passwd", "invalid mount config", "bind source path does not exist",
		"network-scoped alias", "could not find an available", "network ") && !has("connection refused"):
		return failed("the Docker Engine cannot start the container: %s", said)
	}
	return nil
}

func notFound(command, env []string) *facts.StartError {
	e := &facts.StartError{Reason: v1alpha1.ReasonCommandNotFound}
	name := first(command)
	if strings.Contains(name, "/") {
		e.Message = fmt.Sprintf("%s, or the interpreter that it names, does not exist in the container; correct spec.process.command, or use an image that has it", name)
		return e
	}
	path := "its PATH"
	for _, variable := range env {
		if value, ok := strings.CutPrefix(variable, "PATH="); ok {
			path = "PATH=" + value
		}
	}
	e.Message = fmt.Sprintf("%q was not found in the container in %s; correct spec.process.command, or use an image that has it", name, path)
	return e
}

func notPermitted(command []string) *facts.StartError {
	name := first(command)
	if len(command) > 0 {
		name = strconv.Quote(name)
	}
	return &facts.StartError{Reason: v1alpha1.ReasonPermissionDenied,
		Message: name + " is not an executable file in the container; correct spec.process.command or the mode of the file"}
}

func first(command []string) string {
	if len(command) == 0 {
		return "the program of the image"
	}
	return command[0]
}

// fatal matches the message that docker-init writes if it cannot execute the program. The container then exits with code 126 or 127.
var fatal = regexp.MustCompile(`\[FATAL tini \(\d+\)\] exec (.*) failed: (No such file or directory|Permission denied|[A-Z][a-z ]+)\s*$`)

// neverRan returns a StartError if the end of the output shows that the program of an exited container was never executed, else nil.
func neverRan(c *container.InspectResponse, output []byte) *facts.StartError {
	if code := c.State.ExitCode; code != 126 && code != 127 || c.HostConfig == nil || c.HostConfig.Init == nil || !*c.HostConfig.Init {
		return nil
	}
	said := fatal.FindSubmatch(output)
	if said == nil || string(said[1]) != first(argv(c)) {
		return nil
	}
	if string(said[2]) == "No such file or directory" {
		return notFound(argv(c), c.Config.Env)
	}
	return notPermitted(argv(c))
}
