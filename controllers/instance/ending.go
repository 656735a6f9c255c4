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

// mostNamed is how many processes are named in one event.
const mostNamed = 20

// stops says that an end was recorded just now: what is to end still lives.
func stops(instance, before *v1alpha1.Instance) bool {
	is, was := instance.Status.Stopping, before.Status.Stopping
	return is != nil && (was == nil || was.Incarnation != is.Incarnation)
}

// tellEnding names the processes that end with the program: what an agent has started itself, however it did that, is known before it is gone.
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
		return fmt.Errorf("list what ends with the program: %w", err)
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
	return fmt.Sprintf("With the program end the processes that it has started, %d: %s.", len(members), strings.Join(named, ", "))
}
