// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime/oci"
)

// create creates the container of an incarnation and records it, or reports that its image has to be pulled first.
func (r *Runtime) create(ctx context.Context, e *entry, l launch) (pull bool, err error) {
	engine, err := r.theEngine(ctx)
	if err != nil {
		return false, err
	}
	name := fmt.Sprintf("berth-%s-%d", e.uid, l.process.Incarnation)
	made, err := r.client.ContainerCreate(ctx, client.ContainerCreateOptions{
		Name: name, Config: r.inside(l), HostConfig: outside(l, engine),
	})
	switch {
	case err == nil:
		e.record.Container, e.record.ContainerName = made.ID, name
		return false, r.save(e)
	case cerrdefs.IsNotFound(err) && strings.Contains(strings.ToLower(err.Error()), "no such image"):
		if l.config.Pull == pullIfNotPresent {
			return true, nil
		}
		return false, r.imageMissing(l.config.Image)
	case len(l.process.Command) == 0 && strings.Contains(strings.ToLower(err.Error()), "no command"):
		return false, oci.NoCommand(l.config.Image)
	case cerrdefs.IsConflict(err):
		return false, r.ours(ctx, e, l, name, err)
	case cerrdefs.IsInvalidArgument(err), cerrdefs.IsNotFound(err):
		return false, oci.Failed("the Docker Engine rejects the container: %v", err)
	}
	if refused := classify(err.Error(), first(l.process.Command), l.env); refused != nil {
		return false, refused
	}
	return false, r.explain("create the container", err)
}

func (r *Runtime) imageMissing(image string) *facts.StartError {
	return &facts.StartError{Reason: v1alpha1.ReasonImageMissing, Message: fmt.Sprintf("the Docker Engine at %s does not have "+
		"image %q; pull or build it there, or recreate the object with the pull policy IfNotPresent", r.client.DaemonHost(), image)}
}

// ours takes over a container with the requested name that was created by a call whose response was lost.
func (r *Runtime) ours(ctx context.Context, e *entry, l launch, name string, conflict error) error {
	c, err := r.inspect(ctx, name)
	if err != nil {
		return err
	}
	if c == nil {
		return fmt.Errorf("create the container: %w", conflict)
	}
	labels := c.Config.Labels
	if labels[labelInstall] != r.install || labels[LabelUID] != string(e.uid) || number(labels) != l.process.Incarnation {
		return &facts.StartError{Reason: v1alpha1.ReasonContainerTaken,
			Message: fmt.Sprintf("container %s already exists and does not belong to this object; remove or rename it", name)}
	}
	e.record.Container, e.record.ContainerName = c.ID, name
	return r.save(e)
}

// inside returns the configuration of the container.
func (r *Runtime) inside(l launch) *container.Config {
	p := l.process
	from, _ := json.Marshal(p.Origin) // cannot fail for two strings
	config := &container.Config{
		Image: l.config.Image, Env: l.env, WorkingDir: p.Dir, User: l.config.User, Tty: p.Terminal != nil, OpenStdin: true, StopSignal: p.StopSignal,
		Labels: map[string]string{
			labelInstall: r.install, LabelUID: string(p.UID), labelIncarnation: strconv.FormatInt(p.Incarnation, 10), labelName: p.Name,
			labelOrigin: string(from),
		},
	}
	if len(p.Command) > 0 { // the whole argv: the entry point of the image is not prepended
		config.Entrypoint, config.Cmd = p.Command, []string{}
	}
	return config
}

// maxProcesses is the maximum number of processes and threads in a container: enough for a build, but not enough to fill the process table of the machine.
const maxProcesses = 4096

// outside returns the host configuration of the container: what the container may use of the engine's machine. The engine does not restart containers by
// itself, because the manager counts incarnations. Programs in the container do not gain privileges through setuid files.
func outside(l launch, engine *engine) *container.HostConfig {
	config := &container.HostConfig{
		NetworkMode:   container.NetworkMode(l.config.Network),
		RestartPolicy: container.RestartPolicy{Name: container.RestartPolicyDisabled},
		SecurityOpt:   []string{"no-new-privileges"},
		Resources:     container.Resources{PidsLimit: ptr.To(int64(maxProcesses))},
	}
	if engine.init {
		// As PID 1, a program would ignore every signal that it does not handle, and would not reap orphans.
		config.Init = ptr.To(true)
	}
	if size := l.process.Terminal; size != nil {
		config.ConsoleSize = [2]uint{uint(size.Rows), uint(size.Columns)}
	}
	for _, m := range l.config.Mounts {
		config.Mounts = append(config.Mounts, mount.Mount{Type: mount.TypeBind, Source: m.Source, Target: m.Target, ReadOnly: m.ReadOnly})
	}
	return config
}
