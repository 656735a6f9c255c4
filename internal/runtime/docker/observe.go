// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"fmt"
	"time"

	"github.com/moby/moby/api/types/container"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime/oci"
)

// drainTime is how long Observe withholds the exit of a container while the last output is copied.
const drainTime = 5 * time.Second

// Observe implements runtime.Runtime. It does not report a container that was created and not started, because the next Start of that incarnation starts it.
func (r *Runtime) Observe(ctx context.Context, uid types.UID) ([]facts.Incarnation, error) {
	all, err := r.list(ctx, uid)
	if err != nil {
		return nil, fmt.Errorf("observe %s: %w", uid, err)
	}
	found, _, err := r.observe(ctx, uid, all)
	return found, err
}

// List implements runtime.Runtime. It reports a container that was created and not started as Starting, so that orphans are found.
func (r *Runtime) List(ctx context.Context) ([]facts.Incarnation, error) {
	all, err := r.list(ctx, "")
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	uids, of := sets.New(r.entries.UIDs()...), map[types.UID][]container.Summary{}
	for _, c := range all {
		uid := types.UID(c.Labels[LabelUID])
		uids.Insert(uid)
		of[uid] = append(of[uid], c)
	}
	var list []facts.Incarnation
	for uid := range uids {
		found, waiting, err := r.observe(ctx, uid, of[uid])
		if err != nil {
			return nil, err
		}
		list = append(append(list, found...), waiting...)
	}
	return list, nil
}

// observe returns the incarnations of a UID in found, except an incarnation whose container was created but not started: observe returns that one in
// waiting. The parameter all holds the containers of the UID that the engine has listed.
func (r *Runtime) observe(ctx context.Context, uid types.UID, all []container.Summary) (found, waiting []facts.Incarnation, err error) {
	e, err := r.acquire(uid)
	if err != nil {
		return nil, nil, err
	}
	defer r.release(e)
	e.merge(all)
	if e.record.Incarnation == 0 {
		return nil, nil, nil
	}
	engine, err := r.theEngine(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("observe %s: %w", uid, err)
	}
	newest, there, err := r.newest(ctx, e)
	if err != nil {
		return nil, nil, fmt.Errorf("observe %s: %w", uid, err)
	}
	switch {
	case there:
		found = append(found, newest)
	case e.record.Container != "":
		waiting = append(waiting, newest)
	}
	for _, c := range all {
		if number(c.Labels) >= e.record.Incarnation || !isAlive(c.State) {
			continue
		}
		older, err := r.inspect(ctx, c.ID)
		if err != nil {
			return nil, nil, fmt.Errorf("observe %s: %w", uid, err)
		}
		if older != nil && isAlive(older.State.Status) {
			i := facts.Incarnation{UID: string(uid), Number: number(c.Labels), Name: c.Labels[labelName], Origin: origin(c.Labels)}
			r.describe(e, &i, older)
			found = append(found, i)
		}
	}
	for i := range found {
		if found[i].PID != 0 {
			found[i].Node = engine.name
		}
	}
	return found, waiting, nil
}

// newest describes the incarnation of the record. The second result is true if the container has run, if its image is being pulled, or if the start has failed.
// It is false if the container was not created, was created and not started, or was removed before it ran.
func (r *Runtime) newest(ctx context.Context, e *entry) (i facts.Incarnation, there bool, err error) {
	d := &e.record
	i = facts.Incarnation{UID: string(e.uid), Number: d.Incarnation, Name: d.Name, Phase: facts.Starting, ContainerID: d.Container, Adopted: d.Adopted, StopSent: d.StopSent, Origin: d.Origin}
	switch {
	case e.pull != nil:
		i.Message = fmt.Sprintf("pulling image %s", e.pull.image)
		return i, true, nil
	case d.failed():
		i.Phase, i.StartError = facts.Failed, d.Failed
		return i, true, nil
	case d.Container == "":
		return i, false, nil
	}
	c, err := r.inspect(ctx, d.Container)
	if err != nil {
		return i, false, err
	}
	if c == nil {
		if !d.Started { // removed before it ran, or forgotten after all containers were listed: there is nothing to stop
			i.Phase, i.StartError = facts.Failed, oci.Failed("the container was removed before it was started")
			return i, false, nil
		}
		r.gone(e, &i)
		return i, true, nil
	}
	if !d.ran(c) {
		if d.Failed = refused(c); d.failed() {
			i.Phase, i.StartError = facts.Failed, d.Failed
		}
		return i, d.failed(), nil
	}
	r.sawRun(ctx, e, c)
	r.describe(e, &i, c)
	if i.Phase == facts.Exited {
		r.conclude(e, &i, c)
	}
	return i, true, nil
}

// sawRun records that the container has run, and continues copying its output.
func (r *Runtime) sawRun(ctx context.Context, e *entry, c *container.InspectResponse) {
	at := when(c.State.StartedAt)
	if !e.record.Started || !e.record.StartedAt.Equal(at) {
		e.record.Started, e.record.StartedAt = true, at
		if err := r.save(e); err != nil {
			r.log.Error(err, "Cannot record a running container")
		}
	}
	if err := r.startCopier(ctx, e, c); err != nil {
		r.log.Error(err, "Cannot follow the output of a container", "name", e.record.Name)
	}
}

// gone describes a container that another program has removed: its exit status is unknown.
func (r *Runtime) gone(e *entry, i *facts.Incarnation) {
	if e.record.GoneAt.IsZero() {
		e.record.GoneAt = time.Now().UTC().Round(0)
		if err := r.save(e); err != nil {
			r.log.Error(err, "Cannot record that a container was removed")
		}
	}
	i.Phase, i.StartedAt = facts.Exited, r.local(e.record.StartedAt)
	i.Exit = &facts.Exit{FinishedAt: e.record.GoneAt, Message: "the container " + e.record.ContainerName + " was removed by another program"}
}

// conclude sets the exit once the output is complete, or after drainTime.
func (r *Runtime) conclude(e *entry, i *facts.Incarnation, c *container.InspectResponse) {
	i.Exit = e.record.exit(c.State)
	i.Exit.FinishedAt = r.local(i.Exit.FinishedAt)
	if e.copier != nil && !e.copier.finished() {
		now := time.Now()
		if e.drainBy.IsZero() {
			e.drainBy = now.Add(drainTime)
			time.AfterFunc(drainTime, func() { r.events.Add(e.uid) })
		}
		if now.Before(e.drainBy) {
			i.Phase, i.LeaderExit, i.Exit = facts.Running, i.Exit, nil
			i.Message = "copying its last output"
			return
		}
	}
	if e.record.Failed = neverRan(c, r.tail(e.uid)); e.record.failed() {
		if err := r.save(e); err != nil {
			r.log.Error(err, "Cannot record a failed start")
		}
		i.Phase, i.StartError, i.Exit, i.StartedAt, i.Containment = facts.Failed, e.record.Failed, nil, time.Time{}, ""
	}
}

// describe copies the state that the engine reports.
func (r *Runtime) describe(e *entry, i *facts.Incarnation, c *container.InspectResponse) {
	i.ContainerID, i.PID, i.StartedAt, i.Containment = c.ID, int64(c.State.Pid), r.local(when(c.State.StartedAt)), "Container"
	switch c.State.Status {
	case container.StateRunning:
		i.Phase = facts.Running
	case container.StatePaused:
		i.Phase, i.Message = facts.Running, "the container is paused"
	case container.StateRestarting:
		i.Phase, i.Message = facts.Unknown, "the Docker Engine is restarting the container because of the container's restart policy"
	case container.StateRemoving:
		i.Phase, i.Message = facts.Unknown, "the Docker Engine is removing the container"
	case container.StateExited, container.StateDead:
		i.Phase = facts.Exited
	default:
		i.Phase, i.Message = facts.Unknown, fmt.Sprintf("the Docker Engine reports the unknown container state %q", c.State.Status)
	}
	i.StopDeferred = i.Alive() && !i.StopSent && e.deferred.incarnation == i.Number
}
