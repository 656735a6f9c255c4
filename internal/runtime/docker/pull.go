// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"

	"github.com/moby/moby/client"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime/oci"
)

// pull is an image pull in progress. No caller waits for it: the start continues when the image is available.
type pull struct {
	image  string
	cancel context.CancelFunc
}

// pullFor pulls the image of a start in the background. If the manager crashes during the pull, the next manager repeats the start, because no container exists
// yet.
func (r *Runtime) pullFor(e *entry, l launch) {
	ctx, cancel := context.WithCancel(r.Lifetime())
	e.pull = &pull{image: l.config.Image, cancel: cancel}
	begun := r.Go(func() {
		defer cancel()
		err := r.pullImage(ctx, l.config.Image)
		e.Lock()
		defer r.events.Add(e.uid)
		defer r.release(e)
		e.pull = nil
		if ctx.Err() != nil {
			e.record = record{} // as if the start had never been requested
			return
		}
		if err := r.pulled(ctx, e, l, err); err != nil {
			r.log.Error(err, "Cannot start a container after pulling its image; retrying", "name", l.process.Name, "image", l.config.Image)
		}
	})
	if !begun { // the runtime is closed; the next manager repeats the start
		cancel()
		e.pull, e.record = nil, record{}
	}
}

// pulled continues the start after the pull.
func (r *Runtime) pulled(ctx context.Context, e *entry, l launch, err error) error {
	ctx, cancel := context.WithTimeout(ctx, actTimeout)
	defer cancel()
	if err != nil { // the registry may be temporarily unavailable, so the reason is StartFailed, which is retried, instead of ImageMissing
		return r.fail(ctx, e, oci.Failed("cannot pull image %q: %v", l.config.Image, err))
	}
	l.config.Pull = pullNever
	_, err = r.create(ctx, e, l)
	if err == nil {
		err = r.run(ctx, e, l.process.Terminal)
	}
	var refused *facts.StartError
	if errors.As(err, &refused) {
		return r.fail(ctx, e, refused)
	}
	return err
}

func (r *Runtime) pullImage(ctx context.Context, image string) error {
	answer, err := r.client.ImagePull(ctx, image, client.ImagePullOptions{})
	if err != nil {
		return err
	}
	return answer.Wait(ctx)
}
