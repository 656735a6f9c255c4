// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"
	"fmt"

	cerrdefs "github.com/containerd/errdefs"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
)

// Check implements runtime.Inspection. It checks the configuration and the environment, whether the engine has an image that must not be pulled, and whether an
// adopted container can be started again. It cannot check files of the image, and what a registry would return.
func (r *Runtime) Check(ctx context.Context, p runtime.Process) error {
	config, refused := parse(p)
	if refused == nil {
		_, refused = environment(p.Env)
	}
	switch {
	case refused != nil:
		return refused
	case config.Container != "":
		return r.checkAdopted(ctx, p, config)
	case config.Pull == pullIfNotPresent:
		return errors.ErrUnsupported // whether the image can be pulled is not known
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	_, err := r.client.ImageInspect(ctx, config.Image)
	switch {
	case cerrdefs.IsNotFound(err):
		return r.imageMissing(config.Image)
	case err != nil:
		return r.explain("inspect the image", err)
	}
	return nil
}

// checkAdopted checks a start that follows an adopted incarnation. It returns errors.ErrUnsupported for every other start.
func (r *Runtime) checkAdopted(ctx context.Context, p runtime.Process, config containerConfig) error {
	e, err := r.acquire(p.UID)
	if err != nil {
		return err
	}
	adopted, id := e.record.Adopted && e.record.Incarnation < p.Incarnation, e.record.Container
	r.release(e)
	if !adopted {
		return errors.ErrUnsupported
	}
	c, err := r.inspect(ctx, id)
	switch {
	case err != nil:
		return err
	case c == nil || c.HostConfig == nil || !c.HostConfig.AutoRemove || config.Adopt != adoptRequired && config.Image != "":
		return errors.ErrUnsupported
	}
	return &facts.StartError{Reason: v1alpha1.ReasonContainerMissing, Message: fmt.Sprintf("the engine removes container %q when its program ends (--rm), so "+
		"the container cannot be started again; to end the program anyway, stop the object", config.Container)}
}
