// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"encoding/json"
	"fmt"
	"path"
	"strings"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/shim"
)

// What Config.Adopt says of a container that is there already.
const (
	AdoptNever    = "Never"
	AdoptIfExists = "IfExists"
	AdoptRequired = "Required"
)

// What Config.Pull says of an image that the engine does not have.
const (
	PullNever        = "Never"
	PullIfNotPresent = "IfNotPresent"
)

// Config is what a container needs beyond a process: runtime.Process.Config as JSON.
type Config struct {
	// Image is what containers are made of. It may be empty where a container has to be adopted.
	Image string `json:"image,omitempty"`
	// Container is the name or the ID of a container that may be there already; see Adopt.
	Container string `json:"container,omitempty"`
	// Adopt is AdoptNever (a container of that name is a conflict), AdoptIfExists (else one is made of Image) or AdoptRequired.
	// Empty: AdoptNever.
	Adopt string `json:"adopt,omitempty"`
	// Pull is PullNever or PullIfNotPresent. Empty: PullNever.
	Pull string `json:"pull,omitempty"`
	// Network is a network of the engine, or host or none. Empty: what the engine does by default.
	Network string  `json:"network,omitempty"`
	Mounts  []Mount `json:"mounts,omitempty"`
	// User is a user, UID or user:group in the container. Empty: the image's.
	User string `json:"user,omitempty"`
}

// Mount is a file or directory of the engine's machine that the container sees.
type Mount struct {
	Source   string `json:"source"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"readOnly,omitempty"`
}

// parse reads and checks the configuration of a process.
func parse(p runtime.Process) (Config, *facts.StartError) {
	var c Config
	if len(p.Config) > 0 {
		if err := json.Unmarshal(p.Config, &c); err != nil {
			return c, failed("what is configured for the container cannot be read: %v", err)
		}
	}
	switch {
	case c.Image == "" && c.Container == "":
		return c, failed("neither an image nor a container is named; set spec.runtime.docker.image or container")
	case c.Image == "" && c.Adopt != AdoptRequired && c.Adopt != AdoptIfExists:
		return c, failed("no image is named, and container %q must not be adopted; set an image, or adoption to Required or IfExists", c.Container)
	case c.Container == "" && c.Adopt == AdoptRequired:
		return c, failed("a container has to be adopted, and none is named; set spec.runtime.docker.container")
	}
	if !oneOf(c.Adopt, "", AdoptNever, AdoptIfExists, AdoptRequired) {
		return c, failed("adoption must be Never, IfExists or Required, not %q", c.Adopt)
	}
	if !oneOf(c.Pull, "", PullNever, PullIfNotPresent) {
		return c, failed("pull must be Never or IfNotPresent, not %q", c.Pull)
	}
	for _, m := range c.Mounts {
		if !path.IsAbs(m.Source) || !path.IsAbs(m.Target) {
			return c, failed("mount %q on %q: both must be absolute paths", m.Source, m.Target)
		}
	}
	return c, nil
}

func oneOf(value string, allowed ...string) bool {
	for _, a := range allowed {
		if value == a {
			return true
		}
	}
	return false
}

func failed(format string, args ...any) *facts.StartError {
	return &facts.StartError{Reason: v1alpha1.ReasonStartFailed, Message: fmt.Sprintf(format, args...)}
}

// environment is what the container gets: each variable once, as an engine passes on what it is given and programs disagree about which of
// two entries counts.
func environment(given []string) ([]string, *facts.StartError) {
	at := map[string]int{}
	var env []string
	for _, variable := range given {
		name, _, ok := strings.Cut(variable, "=")
		if !ok || name == "" || strings.ContainsRune(variable, 0) {
			return nil, failed("the environment has an entry that is not NAME=value; correct spec.process.env")
		}
		if shim.Refused(name) {
			return nil, failed("the variable %s changes how every program is loaded and is refused; remove it from spec.process.env", name)
		}
		if i, known := at[name]; known {
			env[i] = variable
			continue
		}
		at[name] = len(env)
		env = append(env, variable)
	}
	return env, nil
}
