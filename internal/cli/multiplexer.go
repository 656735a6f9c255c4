// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/internal/lsp/transport"
)

// multiplexer connects to the multiplexer of a language server in a Pod through the API server. endpoint is the address of the multiplexer in the cluster.
func (c *connection) multiplexer(ctx context.Context, namespace, endpoint string) (net.Conn, error) {
	at, err := url.Parse(endpoint)
	if err != nil {
		return nil, fmt.Errorf("read the endpoint of the language server: %w", err)
	}
	service, _, _ := strings.Cut(at.Hostname(), ".")
	secret := &corev1.Secret{}
	if err := c.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: service}, secret); err != nil {
		return nil, fmt.Errorf("read the token of the language server: %w", err)
	}
	base, client, err := upgradable(c.config)
	if err != nil {
		return nil, err
	}
	through := *base
	through.Path = proxyPath(base, namespace, at) + at.Path
	return transport.Through(ctx, client, &through, strings.TrimSpace(string(secret.Data[transport.ClientToken])))
}

// proxyPath returns the path under which the API server forwards requests to the Service at address.
func proxyPath(base *url.URL, namespace string, address *url.URL) string {
	service, _, _ := strings.Cut(address.Hostname(), ".")
	return strings.TrimSuffix(base.Path, "/") + "/api/v1/namespaces/" + namespace + "/services/" + address.Scheme + ":" + service + ":" + address.Port() + "/proxy"
}
