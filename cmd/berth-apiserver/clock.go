// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
)

// clockPeriod is how often a step back of the wall clock is looked for.
const clockPeriod = 2 * time.Second

// startClockController corrects the times since which kinds are served, at the start and after each step back of the wall clock. The API server delays the creation of
// an object by two seconds if its kind has been served for less than two seconds. A time in the future would delay each creation until the clock has reached it.
func startClockController(ctx context.Context, config *rest.Config) error {
	client, err := clientset.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("create a client for kinds: %w", err)
	}
	began, known := time.Now(), time.Duration(math.MaxInt64)
	go wait.UntilWithContext(ctx, func(ctx context.Context) {
		now := time.Now()
		steady := began.Round(0).Add(now.Sub(began)) // by the monotonic clock, which is never set
		offset := now.Round(0).Sub(steady)
		if offset > known-time.Second {
			known = max(known, offset)
			return
		}
		if err := endDelays(ctx, client, now); err != nil {
			fmt.Fprintln(os.Stderr, "berth-apiserver:", err)
			return
		}
		known = offset
	}, clockPeriod)
	return nil
}

// endDelays replaces times in the future since which kinds are served.
func endDelays(ctx context.Context, client clientset.Interface, now time.Time) error {
	kinds := client.ApiextensionsV1().CustomResourceDefinitions()
	list, err := kinds.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list kinds after a step of the clock: %w", err)
	}
	var errs []error
	for i := range list.Items {
		kind, changed := &list.Items[i], false
		for j := range kind.Status.Conditions {
			if c := &kind.Status.Conditions[j]; c.Type == apiextensionsv1.Established && c.LastTransitionTime.After(now) {
				c.LastTransitionTime, changed = metav1.NewTime(now), true
			}
		}
		if changed {
			_, err := kinds.UpdateStatus(ctx, kind, metav1.UpdateOptions{})
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
