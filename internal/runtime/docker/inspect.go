// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"cmp"
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

// Labels of the containers that Berth creates.
const (
	// LabelUID is the UID of the object.
	LabelUID = "berth.dev/uid"
	// labelIncarnation is the number of the incarnation.
	labelIncarnation = "berth.dev/incarnation"
	// labelOrigin identifies the spec from which the container was created.
	labelOrigin = "berth.dev/origin"
	// labelName is the display name of the object; it is not used for look-ups.
	labelName = "berth.dev/name"
	// labelInstall distinguishes installs that share an engine.
	labelInstall = "berth.dev/install"
)

// list returns the containers of this install for one UID, or for all UIDs if uid is empty.
func (r *Runtime) list(ctx context.Context, uid types.UID) ([]container.Summary, error) {
	filters := client.Filters{}.Add("label", labelInstall+"="+r.install)
	if uid != "" {
		filters.Add("label", LabelUID+"="+string(uid))
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	found, err := r.client.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: filters})
	if err != nil {
		return nil, r.explain("list containers", err)
	}
	return found.Items, nil
}

// inspect returns one container, or nil if it does not exist.
func (r *Runtime) inspect(ctx context.Context, id string) (*container.InspectResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	found, err := r.client.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	if cerrdefs.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, r.explain("inspect a container", err)
	}
	c := &found.Container
	c.State, c.Config = cmp.Or(c.State, &container.State{}), cmp.Or(c.Config, &container.Config{}) // callers need not check for nil
	return c, nil
}

func origin(labels map[string]string) (origin facts.Origin) {
	_ = json.Unmarshal([]byte(labels[labelOrigin]), &origin) // zero if the label is missing or not in this format
	return origin
}

func number(labels map[string]string) int64 {
	n, _ := strconv.ParseInt(labels[labelIncarnation], 10, 64)
	return n
}

// isAlive reports whether a container in this state has a process or may have one at any moment.
func isAlive(state container.ContainerState) bool {
	switch state {
	case container.StateRunning, container.StatePaused, container.StateRestarting, container.StateRemoving:
		return true
	}
	return false
}

// merge updates the record from the labels of the containers, because a manager may have crashed after it created a container and before it wrote the record.
func (e *entry) merge(all []container.Summary) {
	for _, c := range all {
		n := number(c.Labels)
		if n > e.record.Incarnation {
			e.record = record{UID: e.uid, Name: c.Labels[labelName], Incarnation: n, Origin: origin(c.Labels)}
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

// when parses a time that the engine reports. It returns the zero time if the text is no time or means "never".
func when(text string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || t.Year() <= 1 {
		return time.Time{}
	}
	return t
}
