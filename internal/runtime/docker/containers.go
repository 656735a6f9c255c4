// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"fmt"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/runtime"
)

// Find implements runtime.Adoption. It returns only running or paused containers.
func (r *Runtime) Find(ctx context.Context, _ string) ([]runtime.Found, error) {
	all, err := r.Containers(ctx)
	if err != nil {
		return nil, err
	}
	var found []runtime.Found
	for _, c := range all {
		if c.State != string(container.StateRunning) && c.State != string(container.StatePaused) {
			continue
		}
		found = append(found, runtime.Found{
			ID: c.ID, Name: c.Name, Created: c.Created, Command: c.Command, Image: c.Image, Labels: c.Labels,
			Owned: c.Owner != "" || c.Labels[LabelUID] != "", Owner: c.Owner,
		})
	}
	return found, nil
}

// Container is a container of the engine, created by Berth or not.
type Container struct {
	ID      string
	Name    string
	Image   string
	Command string // truncated by the engine
	Labels  map[string]string
	// State is created, running, paused, restarting, removing, exited or dead.
	State   string
	Created time.Time
	// Owner is the UID of the object for which the container was created, or that has adopted it; empty if this install has no such object.
	Owner types.UID
}

// Containers returns all containers of the engine in any state, with one API call.
func (r *Runtime) Containers(ctx context.Context) ([]Container, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	found, err := r.client.ContainerList(ctx, client.ContainerListOptions{All: true})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", r.explain("query the Docker Engine", err))
	}
	all := make([]Container, 0, len(found.Items))
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range found.Items {
		owner := r.adopted[c.ID]
		if c.Labels[labelInstall] == r.install {
			owner = types.UID(c.Labels[LabelUID])
		}
		all = append(all, Container{
			ID: c.ID, Name: nameOf(c.Names), Image: c.Image, Command: c.Command, Labels: c.Labels, State: string(c.State),
			Created: time.Unix(c.Created, 0), Owner: owner,
		})
	}
	return all, nil
}
