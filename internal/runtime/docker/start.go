// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"
	"fmt"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/moby/moby/client/pkg/versions"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
)

// launch holds the parameters of one start.
type launch struct {
	process runtime.Process
	config  containerConfig
	env     []string
}

// Start implements runtime.Runtime. It returns when the engine has started the container. If the image must be pulled first, Start returns earlier, and the
// start continues in the background.
func (r *Runtime) Start(ctx context.Context, p runtime.Process) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if p.Incarnation <= 0 {
		return fmt.Errorf("start %s: the incarnation must be greater than 0", p.Name)
	}
	ctx, e, release, err := r.acquireFor(ctx, p.UID)
	if err != nil {
		return err
	}
	defer release()
	defer r.events.Add(p.UID)
	if err := r.start(ctx, e, p); err != nil {
		return fmt.Errorf("start incarnation %d of %s: %w", p.Incarnation, p.Name, err)
	}
	return nil
}

func (r *Runtime) start(ctx context.Context, e *entry, p runtime.Process) error {
	all, err := r.list(ctx, e.uid)
	if err != nil {
		return err
	}
	e.merge(all)
	started, err := r.mayStart(ctx, e, p, all)
	if err != nil || started {
		return err
	}
	r.stopCopier(e)
	if e.record.Incarnation < p.Incarnation {
		before := e.record
		e.record = record{UID: p.UID, Name: p.Name, Incarnation: p.Incarnation, Origin: p.Origin}
		if before.Adopted { // the adopted container is started again
			e.record.Adopted, e.record.Container, e.record.ContainerName = true, before.Container, before.ContainerName
		}
	}
	if e.record.Container == "" || e.record.Adopted && !e.record.Started { // nothing was started yet, so an earlier origin is replaced
		e.record.Origin = p.Origin
	}
	e.record.StopSignal = p.StopSignal
	err = r.carryOut(ctx, e, p)
	var refused *facts.StartError
	if errors.As(err, &refused) {
		return r.fail(ctx, e, refused)
	}
	if err == nil {
		r.sweep(ctx, e, all)
	}
	return err
}

// mayStart returns an error if p must not be started. It returns true if p was already started, so that nothing is left to do.
func (r *Runtime) mayStart(ctx context.Context, e *entry, p runtime.Process, all []container.Summary) (started bool, err error) {
	newest := e.record.Incarnation
	switch {
	case newest > p.Incarnation:
		return false, fmt.Errorf("%w: %d", runtime.ErrStale, newest)
	case e.pull != nil && newest < p.Incarnation:
		return false, fmt.Errorf("%w: incarnation %d is waiting for its image", runtime.ErrOldAlive, newest)
	case newest == p.Incarnation && (e.pull != nil || e.record.failed() || e.record.Started):
		return true, nil
	}
	for _, c := range all {
		if n := number(c.Labels); n < p.Incarnation && isAlive(c.State) {
			return false, fmt.Errorf("%w: container %s of incarnation %d is %s; stop it first", runtime.ErrOldAlive, nameOf(c.Names), n, c.State)
		}
	}
	if e.record.Container == "" || (!e.record.Adopted && newest < p.Incarnation) {
		return false, nil
	}
	return r.hasRun(ctx, e, p.Incarnation)
}

// hasRun inspects the container of the record. It reports whether the container was started as the requested incarnation, and returns ErrOldAlive if the
// container is alive as an earlier incarnation.
func (r *Runtime) hasRun(ctx context.Context, e *entry, incarnation int64) (bool, error) {
	c, err := r.inspect(ctx, e.record.Container)
	if err != nil {
		return false, err
	}
	if c == nil { // removed before it ran
		if !e.record.Adopted {
			e.record.Container = ""
		}
		return false, nil
	}
	if e.record.Incarnation == incarnation {
		return e.record.ran(c), nil
	}
	if isAlive(c.State.Status) {
		return false, fmt.Errorf("%w: the adopted container %s is %s; stop it first", runtime.ErrOldAlive, e.record.ContainerName, c.State.Status)
	}
	return false, nil
}

// ran reports whether a container was started as the incarnation of the record.
func (d *record) ran(c *container.InspectResponse) bool {
	if d.Adopted {
		return d.Started || c.State.StartedAt != d.Before
	}
	return !when(c.State.StartedAt).IsZero()
}

// carryOut starts the process. It returns a StartError if that is impossible.
func (r *Runtime) carryOut(ctx context.Context, e *entry, p runtime.Process) error {
	config, refused := parse(p)
	if refused != nil {
		return refused
	}
	env, refused := environment(p.Env)
	if refused != nil {
		return refused
	}
	l := launch{process: p, config: config, env: env}
	adopted, err := r.adopt(ctx, e, l)
	if err != nil || adopted {
		return err
	}
	if e.record.Container == "" {
		missing, err := r.create(ctx, e, l)
		if err != nil {
			return err
		}
		if missing {
			r.pullFor(e, l)
			return nil
		}
	}
	return r.run(ctx, e, p.Terminal)
}

// run starts the container of the record. It attaches the copier of a terminal before the start, so that no output is missed.
func (r *Runtime) run(ctx context.Context, e *entry, size *runtime.Terminal) error {
	id := e.record.Container
	if size != nil {
		e.record.Size = *size
	}
	c, err := r.newCopier(ctx, e, size != nil, size != nil)
	if err != nil {
		return err
	}
	if _, err := r.client.ContainerStart(ctx, id, client.ContainerStartOptions{}); err != nil {
		c.discard()
		if refused := r.refusal(ctx, id, err); refused != nil {
			return refused
		}
		return r.explain("start the container", err)
	}
	r.begin(e, c)
	if size != nil && !r.sized(e) {
		_, _ = r.client.ContainerResize(ctx, id, client.ContainerResizeOptions{Width: uint(size.Columns), Height: uint(size.Rows)})
	}
	e.record.Started = true
	return r.save(e)
}

// sized reports whether the container was created with the size of its terminal: adopted containers were not, and engines before version 23 ignore the size.
func (r *Runtime) sized(e *entry) bool {
	return !e.record.Adopted && versions.GreaterThanOrEqualTo(r.client.ClientVersion(), "1.42")
}

// fail records why the start failed, and removes the container that was created for this start.
func (r *Runtime) fail(ctx context.Context, e *entry, refused *facts.StartError) error {
	e.record.Failed = refused
	if err := r.save(e); err != nil {
		return err
	}
	if e.record.Container != "" && !e.record.Adopted {
		r.remove(ctx, e.record.Container)
	}
	return nil
}

// sweep removes the containers of earlier incarnations, which have exited.
func (r *Runtime) sweep(ctx context.Context, e *entry, all []container.Summary) {
	for _, c := range all {
		if number(c.Labels) < e.record.Incarnation && c.ID != e.record.Container {
			r.remove(ctx, c.ID)
		}
	}
}

// remove removes a container that is not running. If the removal fails, the next start or Forget retries it.
func (r *Runtime) remove(ctx context.Context, id string) {
	if _, err := r.client.ContainerRemove(ctx, id, client.ContainerRemoveOptions{RemoveVolumes: true}); err != nil {
		r.log.V(1).Info("Cannot remove a container yet", "container", id, "err", err.Error())
	}
}
