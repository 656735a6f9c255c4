// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
)

// Labels of the containers that are ours.
const (
	// LabelUID is the UID of the object.
	LabelUID = "berth.dev/uid"
	// LabelIncarnation counts the starts of that UID.
	LabelIncarnation = "berth.dev/incarnation"
	// LabelOrigin is what of the spec of its object it was made with.
	LabelOrigin = "berth.dev/origin"
	// LabelName is what people know the object by; nothing is found by it.
	LabelName = "berth.dev/name"
	// LabelInstall tells installs that share an engine apart.
	LabelInstall = "berth.dev/install"
)

// list gives the containers of ours, of one UID or, with an empty one, of all.
func (r *Runtime) list(ctx context.Context, uid types.UID) ([]container.Summary, error) {
	filters := client.Filters{}.Add("label", LabelInstall+"="+r.install)
	if uid != "" {
		filters.Add("label", LabelUID+"="+string(uid))
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	found, err := r.client.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: filters})
	if err != nil {
		return nil, r.explain("look for containers", err)
	}
	return found.Items, nil
}

// inspect gives one container, or nil when there is none.
func (r *Runtime) inspect(ctx context.Context, id string) (*container.InspectResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	found, err := r.client.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	if cerrdefs.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, r.explain("look at a container", err)
	}
	if found.Container.State == nil {
		found.Container.State = &container.State{}
	}
	return &found.Container, nil
}

func origin(labels map[string]string) (origin facts.Origin) {
	_ = json.Unmarshal([]byte(labels[LabelOrigin]), &origin) // without it, or with another's, nothing is known
	return origin
}

func number(labels map[string]string) int64 {
	n, _ := strconv.ParseInt(labels[LabelIncarnation], 10, 64)
	return n
}

// lives says whether a container in a state runs something or may do so at any moment.
func lives(state container.ContainerState) bool {
	switch state {
	case container.StateRunning, container.StatePaused, container.StateRestarting, container.StateRemoving:
		return true
	}
	return false
}

// merge takes over what the engine knows and the record does not: a manager was lost between both.
func (e *entry) merge(all []container.Summary) {
	for _, c := range all {
		n := number(c.Labels)
		if n > e.record.Incarnation {
			e.record = record{UID: e.uid, Name: c.Labels[LabelName], Incarnation: n, Origin: origin(c.Labels)}
		}
		if n == e.record.Incarnation && e.record.Container == "" && e.record.Failed == nil {
			e.record.Container, e.record.ContainerName = c.ID, nameOf(c.Names)
		}
	}
}

func nameOf(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return strings.TrimPrefix(names[0], "/")
}

// when reads a time of the engine; the zero time when there was none.
func when(text string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || t.Year() <= 1 {
		return time.Time{}
	}
	return t
}
