// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
)

// defaultSocket is the tmux server of an Instance whose spec names none.
const defaultSocket = "berth"

// typeOf returns the runtime type that the spec names. It returns "" for the default runtime of the manager.
func typeOf(instance *v1alpha1.Instance) v1alpha1.RuntimeType {
	if instance.Spec.Runtime == nil {
		return ""
	}
	return instance.Spec.Runtime.Type
}

// Place returns the value of IndexPlace for the tmux session or the existing container that an Instance names. Only one Instance can have that session or
// container. Place returns "" if the Instance names neither.
func Place(instance *v1alpha1.Instance) string {
	switch typeOf(instance) {
	case v1alpha1.RuntimeTmux:
		return SessionPlace(sessionOf(instance))
	case v1alpha1.RuntimeDocker:
		if docker := instance.Spec.Runtime.Docker; docker != nil && docker.Container != "" {
			return ContainerPlace(docker.Container)
		}
	}
	return ""
}

// adopts returns the session or container that an Instance may adopt, in the form of the policy key adoption. It returns "" if the Instance adopts nothing.
func adopts(instance *v1alpha1.Instance) string {
	if instance.Spec.Adoption == v1alpha1.AdoptionNever || instance.Spec.Adoption == "" {
		return ""
	}
	switch typeOf(instance) {
	case v1alpha1.RuntimeTmux:
		return process.AdoptsSession(sessionOf(instance))
	case v1alpha1.RuntimeDocker:
		if docker := instance.Spec.Runtime.Docker; docker != nil && docker.Container != "" {
			return process.AdoptsContainer(docker.Container)
		}
	}
	return ""
}

// sessionOf returns the tmux server and session of an Instance. A namespace other than default is part of the default session name, so that Instances of
// different namespaces do not collide.
func sessionOf(instance *v1alpha1.Instance) (socket, session string) {
	socket, session = defaultSocket, strings.ReplaceAll(instance.Name, ".", "-")
	if instance.Namespace != "default" {
		session = instance.Namespace + "/" + session
	}
	if tmux := instance.Spec.Runtime.Tmux; tmux != nil {
		if tmux.Socket != "" {
			socket = tmux.Socket
		}
		if tmux.Session != "" {
			session = tmux.Session
		}
	}
	return socket, session
}

// configOf returns the JSON configuration that the backend needs in addition to the process.
func configOf(instance *v1alpha1.Instance) ([]byte, error) {
	adopt := instance.Spec.Adoption
	if adopt == "" {
		adopt = v1alpha1.AdoptionNever
	}
	var config any
	switch typeOf(instance) {
	case v1alpha1.RuntimeTmux:
		socket, session := sessionOf(instance)
		config = map[string]any{"socket": socket, "session": session, "adopt": adopt}
	case v1alpha1.RuntimeDocker:
		docker := instance.Spec.Runtime.Docker
		var mounts []map[string]any
		for _, mount := range docker.Mounts {
			mounts = append(mounts, map[string]any{"source": mount.Source, "target": mount.Target, "readOnly": mount.Access == v1alpha1.MountReadOnly})
		}
		config = map[string]any{
			"image": docker.Image, "container": docker.Container, "adopt": adopt, "pull": docker.Pull, "network": docker.Network,
			"user": docker.User, "mounts": mounts,
		}
	default:
		return nil, nil
	}
	text, err := json.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("record the runtime of the Instance: %w", err)
	}
	return text, nil
}

// attachCommand returns the command that attaches to the terminal and wakes a sleeping Instance, or "" for a Pod. For a running program, the backend may know a
// shorter command (see handle).
func (k *Kind) attachCommand(instance *v1alpha1.Instance) string {
	if typeOf(instance) == v1alpha1.RuntimePod {
		return "" // the backend returns the command for a running Pod; without a running Pod there is no command
	}
	return process.CommandLine("attach", k, instance)
}
