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

// Find implements runtime.Adoption. It returns only running or paused containers, created by Berth or not.
func (r *Runtime) Find(ctx context.Context, _ string) ([]runtime.Found, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	all, err := r.client.ContainerList(ctx, client.ContainerListOptions{All: true})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", r.explain("query the Docker Engine", err))
	}
	var found []runtime.Found
	for _, c := range all.Items {
		if c.State != container.StateRunning && c.State != container.StatePaused {
			continue
		}
		r.mu.Lock()
		owner := r.adopted[c.ID]
		r.mu.Unlock()
		if c.Labels[labelInstall] == r.install {
			owner = types.UID(c.Labels[LabelUID])
		}
		found = append(found, runtime.Found{
			ID: c.ID, Name: nameOf(c.Names), Created: time.Unix(c.Created, 0), Command: c.Command, Image: c.Image, Labels: c.Labels,
			Owned: owner != "" || c.Labels[LabelUID] != "", Owner: owner,
		})
		if one := &found[len(found)-1]; !one.Owned {
			if one.Unfit, err = r.unfit(ctx, c.ID); err != nil {
				return nil, fmt.Errorf("list containers: %w", err)
			}
		}
	}
	return found, nil
}

// unfit returns why a container must not be adopted, or "" if it may be, or has been removed meanwhile.
func (r *Runtime) unfit(ctx context.Context, id string) (string, error) {
	c, err := r.inspect(ctx, id)
	if err != nil || c == nil {
		return "", err
	}
	return r.privileged(c), nil
}
