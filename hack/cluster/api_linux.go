// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

// api is a client of the API server with the rights of the administrator.
type api struct {
	server, token string
	client        *http.Client
}

// api returns a client that uses the kubeconfig of the cluster.
func (c *cluster) api() (*api, error) {
	data, err := os.ReadFile(c.kubeconfigOf("admin"))
	if err != nil {
		return nil, err
	}
	var config struct {
		Clusters []struct {
			Cluster struct{ Server string }
		}
		Users []struct {
			User struct{ Token string }
		}
	}
	if err := json.Unmarshal(data, &config); err != nil || len(config.Clusters) != 1 || len(config.Users) != 1 {
		return nil, fmt.Errorf("unexpected kubeconfig of the cluster: %w", err)
	}
	ca, err := os.ReadFile(c.path("pki/ca.crt"))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true}
	return &api{server: config.Clusters[0].Cluster.Server, token: config.Users[0].User.Token, client: &http.Client{Transport: transport, Timeout: 5 * time.Second}}, nil
}

func (a *api) get(ctx context.Context, path string, into any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.server+path, nil)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+a.token)
	response, err := a.client.Do(request)
	if err != nil {
		return fmt.Errorf("request %s: %w", path, err)
	}
	defer func() { _ = response.Body.Close() }()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		return fmt.Errorf("request %s: %w", path, err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("request %s: %s: %.300s", path, response.Status, data)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(data, into)
}

func (a *api) ready(ctx context.Context) error { return a.get(ctx, "/readyz", nil) }

// nodeReady returns nil when Pods can run: the node is ready and has no taint, and the default service account exists.
func (a *api) nodeReady(ctx context.Context) error {
	var node struct {
		Spec   struct{ Taints []struct{ Key string } }
		Status struct {
			Conditions []struct{ Type, Status, Message string }
		}
	}
	if err := a.get(ctx, "/api/v1/nodes/"+nodeName, &node); err != nil {
		return err
	}
	said := errors.New("the node has no condition Ready yet")
	for _, condition := range node.Status.Conditions {
		if condition.Type == "Ready" && condition.Status == "True" {
			said = nil
		} else if condition.Type == "Ready" {
			said = fmt.Errorf("the node is not ready: %s", condition.Message)
		}
	}
	if said == nil && len(node.Spec.Taints) > 0 {
		said = fmt.Errorf("the node has the taint %s", node.Spec.Taints[0].Key)
	}
	if said != nil {
		return said
	}
	return a.get(ctx, "/api/v1/namespaces/default/serviceaccounts/default", nil)
}
