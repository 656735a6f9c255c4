// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"context"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/lifecycle"
)

const (
	// wakeWithin bounds how long a request waits for a sleeping Instance to start.
	wakeWithin = time.Minute
	// wakePoll is how often the Instance is polled while a request waits.
	wakePoll = 50 * time.Millisecond
)

// awake registers a user of the Instance and waits until a sleeping Instance has started. It does not start an Instance that is stopped for another reason. The
// caller must call leave.
func (s *Server) awake(ctx context.Context, t target) (leave func(), refused *refusal) {
	instance, is := t.object.(*v1alpha1.Instance)
	if !is {
		return func() {}, nil
	}
	leave = s.opts.Presence.Use(instance.UID) // from here until leave, the Instance does not fall asleep
	if !s.dozes(instance) {
		return leave, nil
	}
	err := wait.PollUntilContextTimeout(ctx, wakePoll, wakeWithin, false, func(ctx context.Context) (bool, error) {
		now := &v1alpha1.Instance{}
		err := s.opts.Reader.Get(ctx, client.ObjectKeyFromObject(instance), now)
		if apierrors.IsNotFound(err) || err == nil && now.UID != instance.UID {
			refused = refuse(http.StatusNotFound, "%s was deleted", t)
			return true, nil
		}
		// After another error, the API server may be available again before the timeout.
		return err == nil && !s.dozes(now) && settled(now), nil
	})
	if wait.Interrupted(err) {
		refused = refuse(http.StatusConflict, "%s is idle and did not start again: see its conditions with berth status", t)
	}
	return leave, refused
}

// dozes reports whether an Instance is asleep or falling asleep.
func (s *Server) dozes(instance *v1alpha1.Instance) bool {
	return s.opts.Presence.Resting(instance.UID) || lifecycle.Asleep(&instance.Status.ProcessStatus)
}

// settled reports whether an Instance is ready or stalled.
func settled(instance *v1alpha1.Instance) bool {
	conditions := instance.Status.Conditions
	return meta.IsStatusConditionTrue(conditions, v1alpha1.ConditionReady) || meta.IsStatusConditionTrue(conditions, v1alpha1.ConditionStalled)
}
