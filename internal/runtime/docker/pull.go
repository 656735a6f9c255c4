// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"

	"github.com/moby/moby/client"

	"github.com/berth-dev/berth/internal/facts"
)

// pull is an image on its way. Nobody waits for it: the start goes on when it is there.
type pull struct {
	image  string
	cancel context.CancelFunc
}

// pullFor pulls the image of a start in the background. A manager that is lost meanwhile begins anew: nothing was made yet.
func (r *Runtime) pullFor(e *entry, l launch) {
	ctx, cancel := context.WithCancel(r.ctx)
	e.pull = &pull{image: l.config.Image, cancel: cancel}
	r.loops.Go(func() {
		defer cancel()
		err := r.pullImage(ctx, l.config.Image)
		e.mu.Lock()
		defer r.events.Tell(e.uid)
		defer r.release(e)
		e.pull = nil
		if ctx.Err() != nil {
			e.record = record{} // as if it had never been asked for
			return
		}
		if err := r.pulled(ctx, e, l, err); err != nil {
			r.log.Error(err, "Starting after a pull failed; it is tried again", "name", l.process.Name, "image", l.config.Image)
		}
	})
}

// pulled goes on with the start.
func (r *Runtime) pulled(ctx context.Context, e *entry, l launch, err error) error {
	ctx, cancel := context.WithTimeout(ctx, actTimeout)
	defer cancel()
	if err != nil { // a registry can be away for a while, so this is worth more tries than an image that nobody fetches
		return r.fail(ctx, e, failed("the image %q could not be pulled: %v", l.config.Image, err))
	}
	l.config.Pull = PullNever
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
