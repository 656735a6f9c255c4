// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// Renews reports whether a host renews its Lease while Renews waits. The parameter during is the maximum wait; it should exceed Interval. Renews does not
// compare the renewal time with the local clock, because the clocks of two machines differ.
func Renews(ctx context.Context, reader client.Reader, clock clock.WithTicker, namespace, host string, during time.Duration) (bool, error) {
	first, err := renewedAt(ctx, reader, namespace, host)
	if err != nil || first == nil {
		return false, err
	}
	over := clock.NewTimer(during)
	defer over.Stop()
	tick := clock.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-over.C():
			return false, nil
		case <-tick.C():
		}
		switch last, err := renewedAt(ctx, reader, namespace, host); {
		case err != nil:
			return false, err
		case last != nil && !last.Equal(first):
			return true, nil
		}
	}
}

// Renewed returns the time at which each host last renewed its Lease, by the clock of that host. The map is empty if there is no Lease.
func Renewed(ctx context.Context, reader client.Reader, namespace string) (map[string]time.Time, error) {
	list := &coordinationv1.LeaseList{}
	if err := reader.List(ctx, list, client.InNamespace(namespace), client.HasLabels{v1alpha1.LabelHost}); err != nil {
		return nil, fmt.Errorf("list Leases in namespace %s: %w", namespace, err)
	}
	renewed := make(map[string]time.Time, len(list.Items))
	for i := range list.Items {
		renewed[list.Items[i].Labels[v1alpha1.LabelHost]] = ptr.Deref(list.Items[i].Spec.RenewTime, metav1.MicroTime{}).Time
	}
	return renewed, nil
}

// renewedAt returns when the Lease of a host was last renewed, or nil if there is no Lease.
func renewedAt(ctx context.Context, reader client.Reader, namespace, host string) (*metav1.MicroTime, error) {
	lease := &coordinationv1.Lease{}
	key := client.ObjectKey{Namespace: namespace, Name: leasePrefix + host}
	switch err := reader.Get(ctx, key, lease); {
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // no Lease, no time
	case err != nil:
		return nil, fmt.Errorf("read Lease %s, which host %s renews: %w", key, host, err)
	}
	return ptr.To(ptr.Deref(lease.Spec.RenewTime, metav1.MicroTime{})), nil
}
