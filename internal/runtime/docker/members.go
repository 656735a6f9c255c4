// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/client"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/runtime"
)

// Members implements runtime.Inspection. The engine determines the names and resources with ps.
func (r *Runtime) Members(ctx context.Context, uid types.UID) ([]runtime.Member, error) {
	c, err := r.running(ctx, uid)
	if err != nil {
		return nil, fmt.Errorf("list the processes of %s: %w", uid, err)
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	top, err := r.client.ContainerTop(ctx, c.id, client.ContainerTopOptions{Arguments: []string{"-eo", "pid,rss,times,comm"}})
	switch {
	case cerrdefs.IsConflict(err), cerrdefs.IsNotFound(err): // the container has exited meanwhile
		return nil, nil
	case err != nil:
		return nil, r.explain("list the processes of a container", err)
	}
	return membersOf(top.Titles, top.Processes), nil
}

func membersOf(titles []string, rows [][]string) []runtime.Member {
	pid, name := slices.Index(titles, "PID"), slices.Index(titles, "COMMAND")
	if pid < 0 || name < 0 {
		return nil
	}
	rss, spent := slices.Index(titles, "RSS"), slices.Index(titles, "TIME")
	var members []runtime.Member
	for _, row := range rows {
		if len(row) <= max(pid, name) {
			continue
		}
		if n, err := strconv.ParseInt(row[pid], 10, 64); err == nil {
			member := runtime.Member{PID: n, Name: row[name]}
			if rss >= 0 && spent >= 0 && len(row) > max(rss, spent) {
				kibibytes, _ := strconv.ParseInt(row[rss], 10, 64) // 0 if ps of the machine has no such column
				seconds, _ := strconv.ParseInt(row[spent], 10, 64)
				member.Memory, member.CPU = kibibytes<<10, time.Duration(seconds)*time.Second
			}
			members = append(members, member)
		}
	}
	return members
}
