// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"fmt"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/client"
	"k8s.io/apimachinery/pkg/types"
)

// Forget implements runtime.Runtime. An adopted container is not removed.
func (r *Runtime) Forget(ctx context.Context, uid types.UID) error {
	ctx, e, release, err := r.acquireFor(ctx, uid)
	if err != nil {
		return err
	}
	defer release()
	if err := r.forget(ctx, e); err != nil {
		return fmt.Errorf("forget %s: %w", uid, err)
	}
	return nil
}

func (r *Runtime) forget(ctx context.Context, e *entry) error {
	all, err := r.list(ctx, e.uid)
	if err != nil {
		return err
	}
	if e.pull != nil {
		e.pull.cancel()
		return fmt.Errorf("canceled the pull of image %s, which was in progress", e.pull.image)
	}
	for _, c := range all {
		if isAlive(c.State) {
			return fmt.Errorf("its container %s is %s; stop it first", nameOf(c.Names), c.State)
		}
	}
	if e.record.Adopted {
		c, err := r.inspect(ctx, e.record.Container)
		if err != nil {
			return err
		}
		if c != nil && isAlive(c.State.Status) {
			return fmt.Errorf("the adopted container %s is %s; stop or release it first", e.record.ContainerName, c.State.Status)
		}
	}
	for _, c := range all {
		_, err := r.client.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{RemoveVolumes: true})
		if err != nil && !cerrdefs.IsNotFound(err) {
			return r.explain("remove the container", err)
		}
	}
	return r.drop(e)
}
