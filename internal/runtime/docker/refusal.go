// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"regexp"
	"slices"
	"strings"

	"github.com/moby/moby/api/types/container"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime/oci"
)

// refusal returns a StartError if a retry of the failed start would fail in the same way, or nil if a retry may succeed.
func (r *Runtime) refusal(ctx context.Context, id string, err error) *facts.StartError {
	c, failed := r.inspect(ctx, id)
	if failed != nil || c == nil {
		return classify(err.Error(), "", nil)
	}
	return classify(err.Error(), program(c), c.Config.Env)
}

// refused does the same as refusal for a container whose start failed while no manager waited for the result.
func refused(c *container.InspectResponse) *facts.StartError {
	if c.State.Error == "" || isAlive(c.State.Status) || !when(c.State.StartedAt).IsZero() {
		return nil
	}
	return classify(c.State.Error, program(c), c.Config.Env)
}

// program returns the program of a container, or "" if the configuration does not name it.
func program(c *container.InspectResponse) string {
	return first(slices.Concat(c.Config.Entrypoint, c.Config.Cmd))
}

func first(command []string) string {
	if len(command) == 0 {
		return ""
	}
	return command[0]
}

// classify returns a StartError if the message of the engine shows that a retry would fail too.
func classify(said, program string, env []string) *facts.StartError {
	if refusal := oci.Refusal(said, program, pathIn(env)); refusal != nil {
		return refusal
	}
	has := oci.Mentions(said)
	switch {
	case has("no space left", "resource temporarily unavailable", "too many open files", "cannot allocate memory", "timeout"):
		return nil
	case has("oci runtime create failed", "unable to find user", "no matching entries in passwd", "invalid mount config", "bind source path does not exist",
		"network-scoped alias", "could not find an available", "network ") && !has("connection refused"):
		return oci.Failed("the Docker Engine cannot start the container: %s", said)
	}
	return nil
}

// pathIn returns the value of PATH in an environment, or "".
func pathIn(env []string) (path string) {
	for _, variable := range env {
		if value, ok := strings.CutPrefix(variable, "PATH="); ok {
			path = value
		}
	}
	return path
}

// fatal matches the message that docker-init writes if it cannot execute the program. The container then exits with code 126 or 127.
var fatal = regexp.MustCompile(`\[FATAL tini \(\d+\)\] exec (.*) failed: (No such file or directory|Permission denied|[A-Z][a-z ]+)\s*$`)

// neverRan returns a StartError if the end of the output shows that the program of an exited container was never executed, else nil.
func neverRan(c *container.InspectResponse, output []byte) *facts.StartError {
	if code := c.State.ExitCode; code != 126 && code != 127 || c.HostConfig == nil || !ptr.Deref(c.HostConfig.Init, false) {
		return nil
	}
	said := fatal.FindSubmatch(output)
	if said == nil || string(said[1]) != program(c) {
		return nil
	}
	if string(said[2]) == "No such file or directory" {
		return oci.NotFound(program(c), pathIn(c.Config.Env))
	}
	return oci.NotPermitted(program(c))
}
