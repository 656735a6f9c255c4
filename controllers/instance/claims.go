// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/arbitration"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/hosts"
	"github.com/berth-dev/berth/internal/lifecycle"
)

// IndexPlace is the field index that finds Instances by the session or container that they claim.
const IndexPlace = "berth.dev/place"

// contested defines the contest for sessions and containers. The claim of an object never changes, because its runtime is immutable.
var contested = arbitration.Contest{Index: IndexPlace, Things: byPlace, NewList: func() client.ObjectList { return &v1alpha1.InstanceList{} }}

// conflictRetry is how soon to check again whether the session is free. A reconcile is also triggered when another Instance releases the session.
const conflictRetry = 2 * time.Second

// settle blocks an Instance whose session or container belongs to another Instance.
func (k *Kind) settle(ctx context.Context, instance *v1alpha1.Instance, start *process.StartSpec) error {
	if !Claims(instance) || start.Blocked != nil { // an object that cannot start reserves nothing; a running process holds its session without this
		return nil
	}
	thing := Place(instance)
	var list v1alpha1.InstanceList
	if err := k.client.List(ctx, &list, client.MatchingFields{IndexPlace: thing}); err != nil {
		return fmt.Errorf("list the Instances with the same claim: %w", err)
	}
	claims := []arbitration.Claim{arbitration.Of(instance, arbitration.Live(instance))}
	for i := range list.Items {
		other := &list.Items[i]
		if other.UID == instance.UID || !hosts.Same(instance, other) {
			continue
		}
		competes, err := Competes(ctx, other, k.permission)
		if err != nil {
			return err
		}
		if competes {
			claims = append(claims, arbitration.Of(other, arbitration.Live(other)))
		}
	}
	first := arbitration.Settle(&k.reserved, thing, instance.UID, claims, k.clock.Now())
	if first.UID == instance.UID {
		return nil
	}
	start.Blocked = &lifecycle.Blocked{
		Conflict: true,
		Reason:   v1alpha1.ReasonSessionClaimed,
		Message: fmt.Sprintf("The %s belongs to %s, which claimed it first. Stop or delete that Instance, or recreate this one with another name.",
			named(thing), first.Describe("Instance", instance.Namespace)),
		Retry: conflictRetry,
	}
	return nil
}

// check blocks an Instance that the backend would refuse to start, for example because a session that does not belong to it already has the name of its
// session, or because there is nothing to adopt.
func (k *Kind) check(ctx context.Context, instance *v1alpha1.Instance, start *process.StartSpec) error {
	inspection := k.Runtime(instance).Capabilities().Inspection
	if inspection == nil || start.Blocked != nil || !arbitration.Live(instance) && !arbitration.Wants(instance) {
		return nil
	}
	if instance.Status.ObservedGeneration == 0 && !start.Refused {
		return nil // the first start usually succeeds; if it does not, the next reconcile checks why
	}
	err := inspection.Check(ctx, start.Process)
	if errors.Is(err, errors.ErrUnsupported) {
		return nil
	}
	var refused *facts.StartError
	if errors.As(err, &refused) {
		start.Blocked = &lifecycle.Blocked{
			Conflict: refused.Reason == v1alpha1.ReasonSessionTaken || refused.Reason == v1alpha1.ReasonSessionClaimed,
			Absent:   refused.Reason == v1alpha1.ReasonNothingToAdopt || refused.Reason == v1alpha1.ReasonContainerMissing,
			Reason:   refused.Reason,
			Message:  refused.Message,
			Retry:    conflictRetry,
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("check whether the Instance can be started: %w", err)
	}
	return nil
}

func byPlace(object client.Object) []string {
	instance, ok := object.(*v1alpha1.Instance)
	if !ok || Place(instance) == "" {
		return nil
	}
	return []string{Place(instance)}
}

// named describes a claimed session or container for a message.
func named(thing string) string {
	var socket, name string
	if n, _ := fmt.Sscanf(thing, "docker %s", &name); n == 1 {
		return fmt.Sprintf("container %q", name)
	}
	if n, _ := fmt.Sscanf(thing, "tmux %s", &socket); n == 1 {
		return fmt.Sprintf("session %q of the tmux server %q", thing[len("tmux ")+len(socket)+1:], socket)
	}
	return thing
}
