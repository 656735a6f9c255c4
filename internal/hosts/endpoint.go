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
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

const (
	// annotationEndpoint and annotationAuthority contain the Endpoint of a host.
	annotationEndpoint  = "berth.dev/endpoint"
	annotationAuthority = "berth.dev/endpoint-ca"
)

// Endpoint is where the manager of a host serves logs and terminals. It is in the Lease of the host, so it is renewed with the Lease, and only accounts that may
// serve the host can change it.
type Endpoint struct {
	// URL is empty if the manager has ended, or serves neither logs nor terminals.
	URL string
	// Authority is the certificate authority to trust there, in PEM format.
	Authority []byte
}

func endpointOf(lease *coordinationv1.Lease) Endpoint {
	return Endpoint{URL: lease.Annotations[annotationEndpoint], Authority: []byte(lease.Annotations[annotationAuthority])}
}

// EndpointOf returns the endpoint of a host. The endpoint has no URL if the host has no Lease.
func EndpointOf(ctx context.Context, reader client.Reader, namespace, host string) (Endpoint, error) {
	lease := &coordinationv1.Lease{}
	key := client.ObjectKey{Namespace: namespace, Name: leasePrefix + host}
	if err := reader.Get(ctx, key, lease); client.IgnoreNotFound(err) != nil {
		return Endpoint{}, fmt.Errorf("read the address of host %q from its Lease: %w", host, err)
	} else if apierrors.IsNotFound(err) {
		return Endpoint{}, nil
	}
	return endpointOf(lease), nil
}

// Endpoints returns the endpoints of the hosts that renewed their Lease within Duration before now, or of all hosts if none did. It compares the clock of the
// caller with those of the hosts, which suffices for hosts on the machine of the caller.
func Endpoints(ctx context.Context, reader client.Reader, namespace string, now time.Time) (map[string]Endpoint, error) {
	list := &coordinationv1.LeaseList{}
	if err := reader.List(ctx, list, client.InNamespace(namespace), client.HasLabels{v1alpha1.LabelHost}); err != nil {
		return nil, fmt.Errorf("list Leases in namespace %s: %w", namespace, err)
	}
	all, current := map[string]Endpoint{}, map[string]Endpoint{}
	for i := range list.Items {
		host, endpoint := list.Items[i].Labels[v1alpha1.LabelHost], endpointOf(&list.Items[i])
		if endpoint.URL == "" {
			continue
		}
		all[host] = endpoint
		if renewed := ptr.Deref(list.Items[i].Spec.RenewTime, metav1.MicroTime{}); now.Sub(renewed.Time) < Duration {
			current[host] = endpoint
		}
	}
	if len(current) == 0 {
		return all, nil
	}
	return current, nil
}
