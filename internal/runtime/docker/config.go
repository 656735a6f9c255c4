// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"encoding/json"
	"path"
	"slices"
	"strings"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/oci"
	"github.com/berth-dev/berth/internal/shim"
)

// Values of containerConfig.Adopt: what to do if the container already exists.
const (
	adoptNever    = "Never"
	adoptIfExists = "IfExists"
	adoptRequired = "Required"
)

// Values of containerConfig.Pull: what to do if the engine does not have the image.
const (
	pullNever        = "Never"
	pullIfNotPresent = "IfNotPresent"
)

// containerConfig is the configuration of a container in addition to the other fields of runtime.Process. It is the JSON in runtime.Process.Config.
type containerConfig struct {
	// Image is the image from which containers are created. It may be empty only if Container is set and Adopt permits adoption.
	Image string `json:"image,omitempty"`
	// Container is the name or ID of a container that may already exist; see Adopt.
	Container string `json:"container,omitempty"`
	// Adopt is adoptNever (an existing container is a conflict), adoptIfExists (an existing container is adopted, and a missing one is created from Image) or
	// adoptRequired (a missing container makes the start fail). Empty: adoptNever.
	Adopt string `json:"adopt,omitempty"`
	// Pull is pullNever or pullIfNotPresent. Empty: pullNever.
	Pull string `json:"pull,omitempty"`
	// Network is a network of the engine, or host or none. Empty: the engine's default.
	Network string      `json:"network,omitempty"`
	Mounts  []bindMount `json:"mounts,omitempty"`
	// User is a user, UID or user:group in the container. Empty: the image's default.
	User string `json:"user,omitempty"`
}

// bindMount is a bind mount of a file or directory on the engine's machine.
type bindMount struct {
	Source   string `json:"source"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"readOnly,omitempty"`
}

// parse decodes and validates the configuration of a process.
func parse(p runtime.Process) (containerConfig, *facts.StartError) {
	var c containerConfig
	if len(p.Config) > 0 {
		if err := json.Unmarshal(p.Config, &c); err != nil {
			return c, oci.Failed("cannot parse the configuration of the container: %v", err)
		}
	}
	switch {
	case c.Image == "" && c.Container == "":
		return c, oci.Failed("no image and no container are set; set spec.runtime.docker.image or spec.runtime.docker.container")
	case c.Image == "" && c.Adopt != adoptRequired && c.Adopt != adoptIfExists:
		return c, oci.Failed("no image is set, and container %q must not be adopted; set an image, or set adoption to Required or IfExists", c.Container)
	case c.Container == "" && c.Adopt == adoptRequired:
		return c, oci.Failed("adoption is Required, but no container is set; set spec.runtime.docker.container")
	}
	if !slices.Contains([]string{"", adoptNever, adoptIfExists, adoptRequired}, c.Adopt) {
		return c, oci.Failed("adoption must be Never, IfExists or Required, not %q", c.Adopt)
	}
	if !slices.Contains([]string{"", pullNever, pullIfNotPresent}, c.Pull) {
		return c, oci.Failed("pull must be Never or IfNotPresent, not %q", c.Pull)
	}
	for _, m := range c.Mounts {
		if !path.IsAbs(m.Source) || !path.IsAbs(m.Target) {
			return c, oci.Failed("mount %q at %q: both must be absolute paths", m.Source, m.Target)
		}
	}
	return c, nil
}

// environment returns the variables without duplicates; the last entry wins. The engine would pass on duplicates, and programs differ in which one they use.
func environment(given []string) ([]string, *facts.StartError) {
	at := map[string]int{}
	var env []string
	for _, variable := range given {
		name, _, ok := strings.Cut(variable, "=")
		if !ok || name == "" || strings.ContainsRune(variable, 0) {
			return nil, oci.Failed("spec.process.env contains an entry that is not NAME=value; correct it")
		}
		if shim.Refused(name) {
			return nil, oci.Failed("the variable %s is not permitted, because it changes how every program is loaded; remove it from spec.process.env", name)
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
