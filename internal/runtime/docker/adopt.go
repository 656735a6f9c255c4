// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/moby/moby/api/types/container"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
)

// adopt adopts the container that the configuration names, and starts it if it is not running. It returns false if there is no such container, or if the
// container was created for this object.
func (r *Runtime) adopt(ctx context.Context, e *entry, l launch) (adopted bool, err error) {
	name := l.config.Container
	if name == "" {
		if e.record.Adopted { // the spec no longer names a container
			e.record.Adopted, e.record.Container, e.record.ContainerName = false, "", ""
		}
		return false, nil
	}
	if e.record.Adopted {
		name = e.record.Container // by its ID, because another container may have the name now
	}
	c, err := r.inspect(ctx, name)
	if err != nil {
		return false, err
	}
	if c == nil {
		e.record.Adopted, e.record.Container = false, ""
		if l.config.Adopt == adoptRequired {
			return false, &facts.StartError{Reason: v1alpha1.ReasonContainerMissing, Message: fmt.Sprintf("container %q does not exist at the "+
				"Docker Engine %s; create it, or recreate the object with adoption IfExists and an image", l.config.Container, r.client.DaemonHost())}
		}
		return false, nil
	}
	if c.Config.Labels[labelInstall] == r.install && c.Config.Labels[LabelUID] == string(e.uid) {
		return false, nil // the container was created for this object
	}
	if !e.record.Adopted && !names(l.config.Container, c) {
		return false, &facts.StartError{Reason: v1alpha1.ReasonContainerMissing, Message: fmt.Sprintf("no container has the name %q; specify the name of the "+
			"container or its complete ID, because the policies on adoption compare names", l.config.Container)}
	}
	if refused := r.mayAdopt(e.uid, c, l.config); refused != nil {
		return false, refused
	}
	e.record.Adopted, e.record.Container, e.record.ContainerName = true, c.ID, nameOf([]string{c.Name})
	if isAlive(c.State.Status) {
		e.record.Started, e.record.StartedAt = true, when(c.State.StartedAt)
		if err := r.save(e); err != nil {
			return false, err
		}
		return true, r.startCopier(ctx, e, c)
	}
	e.record.Before = c.State.StartedAt
	if err := r.save(e); err != nil {
		return false, err
	}
	return true, r.run(ctx, e, terminalOf(c, l.process.Terminal))
}

// names reports whether a text is the name or the ID of a container, complete or as docker prints it. An engine also accepts every other beginning of an ID.
func names(text string, c *container.InspectResponse) bool {
	const short = 12
	return text == nameOf([]string{c.Name}) || text == c.ID || len(text) == short && strings.HasPrefix(c.ID, text)
}

// terminalOf returns the terminal size for a container that was created by another program, or nil if it has no terminal.
func terminalOf(c *container.InspectResponse, wanted *runtime.Terminal) *runtime.Terminal {
	if !c.Config.Tty {
		return nil
	}
	if wanted == nil {
		return &runtime.Terminal{Columns: 80, Rows: 24}
	}
	return wanted
}

func (r *Runtime) mayAdopt(uid types.UID, c *container.InspectResponse, config containerConfig) *facts.StartError {
	taken := func(format string, args ...any) *facts.StartError {
		return &facts.StartError{Reason: v1alpha1.ReasonContainerTaken, Message: fmt.Sprintf(format, args...)}
	}
	name := nameOf([]string{c.Name})
	if config.Adopt == "" || config.Adopt == adoptNever {
		return taken("container %s already exists, and the spec does not permit its adoption; remove the container, or set adoption to IfExists", name)
	}
	r.mu.Lock()
	owner := r.adopted[c.ID]
	r.mu.Unlock()
	if owner != "" && owner != uid {
		return taken("container %s is already adopted by another object (UID %s); delete that object, or recreate this one with another container", name, owner)
	}
	if c.Config.Labels[LabelUID] != "" {
		return taken("Berth created container %s for %s; recreate this object with another container", name, c.Config.Labels[labelName])
	}
	if why := r.privileged(c); why != "" {
		return taken("container %s must not be adopted, because %s; recreate the container without that right", name, why)
	}
	return nil
}

// Release forgets a UID and does not change its container, whether running or not. A container that Berth created keeps its labels, so later calls for the same
// UID find the container again.
func (r *Runtime) Release(_ context.Context, uid types.UID) error {
	e, err := r.acquire(uid)
	if err != nil {
		return err
	}
	defer r.release(e)
	if e.pull != nil {
		e.pull.cancel()
		return fmt.Errorf("release %s: %w", uid, errors.New("canceled an image pull that was in progress; retry"))
	}
	return r.drop(e)
}
