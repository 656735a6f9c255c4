// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/runtime"
)

// mostNamed is the maximum number of processes that one event names.
const mostNamed = 20

// stops reports whether this reconcile has recorded a stop of the process, which is still running.
func stops(instance, before *v1alpha1.Instance) bool {
	is, was := instance.Status.Stopping, before.Status.Stopping
	return is != nil && (was == nil || was.Incarnation != is.Incarnation)
}

// tellEnding emits an event that names the processes that will be terminated together with the program: all processes that the program, for example an agent,
// has started, directly or indirectly. It must be called while they still run.
func (k *Kind) tellEnding(ctx context.Context, instance *v1alpha1.Instance) error {
	inspection := k.Runtime(instance).Capabilities().Inspection
	if inspection == nil || k.recorder == nil {
		return nil
	}
	members, err := inspection.Members(ctx, instance.UID)
	if errors.Is(err, errors.ErrUnsupported) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list the child processes: %w", err)
	}
	if len(members) < 2 {
		return nil
	}
	k.recorder.Eventf(instance, nil, corev1.EventTypeNormal, v1alpha1.ReasonEndingProcesses, "Reconcile", "%s", ending(members[1:]))
	return nil
}

func ending(members []runtime.Member) string {
	var named []string
	for _, member := range members[:min(len(members), mostNamed)] {
		named = append(named, fmt.Sprintf("%s (%d)", member.Name, member.PID))
	}
	if more := len(members) - len(named); more > 0 {
		named = append(named, fmt.Sprintf("%d more", more))
	}
	return fmt.Sprintf("Terminating %d child processes: %s.", len(members), strings.Join(named, ", "))
}
