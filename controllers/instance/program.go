// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/hook"
	"github.com/berth-dev/berth/internal/procstat"
)

// IndexProgram is the field index that finds Instances by their running program on a machine.
const IndexProgram = "berth.dev/program"

// program returns the value of IndexProgram for a process of a boot of a machine.
func program(boot string, pid, ticks int64) string { return fmt.Sprintf("%s %d %d", boot, pid, ticks) }

func byProgram(object client.Object) []string {
	instance, is := object.(*v1alpha1.Instance)
	if !is || contained(instance) || instance.Status.Process == nil {
		return nil
	}
	running := instance.Status.Process
	if running.PID == 0 || running.StartTicks == 0 || running.BootID == "" {
		return nil
	}
	return []string{program(running.BootID, running.PID, running.StartTicks)}
}

// FindProgram returns a function that returns the Instance whose running program is a process of a boot of a machine. cache must have the index IndexProgram.
func FindProgram(cache client.Reader) func(context.Context, string, procstat.Process) (hook.Object, bool) {
	return func(ctx context.Context, boot string, process procstat.Process) (hook.Object, bool) {
		var list v1alpha1.InstanceList
		err := cache.List(ctx, &list, client.MatchingFields{IndexProgram: program(boot, int64(process.PID), int64(process.Ticks))})
		if err != nil || len(list.Items) != 1 {
			return hook.Object{}, false
		}
		return hook.Object{UID: list.Items[0].UID, Incarnation: list.Items[0].Status.Process.Incarnation}, true
	}
}
