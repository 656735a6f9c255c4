// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/berth-dev/berth/internal/statedir"
)

// setAccess creates the credentials for this control plane: the configuration for this process, and the kubeconfig for users.
func (c *ControlPlane) setAccess(id *identity) error {
	server := fmt.Sprintf("https://127.0.0.1:%d", c.port)
	c.config = &rest.Config{
		Host: server, BearerToken: id.adminToken, TLSClientConfig: rest.TLSClientConfig{CAData: id.caPEM},
		QPS: -1, // no rate limit: the API server serves only this machine
	}
	admin, err := kubeconfig(server, "berth-admin", id.adminToken, id.caPEM)
	if err != nil {
		return err
	}
	c.kubeconfig = admin
	return writePrivateIfChanged(c.dir.defaultAccess(), admin)
}

func kubeconfig(server, user, token string, ca []byte) ([]byte, error) {
	config := clientcmdapi.NewConfig()
	config.Clusters["berth"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
	config.AuthInfos[user] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts["berth"] = &clientcmdapi.Context{Cluster: "berth", AuthInfo: user}
	config.CurrentContext = "berth"
	data, err := clientcmd.Write(*config)
	if err != nil {
		return nil, fmt.Errorf("write a kubeconfig: %w", err)
	}
	return data, nil
}

func writePrivateIfChanged(path string, data []byte) error {
	if have, err := os.ReadFile(path); err == nil && string(have) == string(data) {
		return nil
	}
	return statedir.Write(path, data)
}

// readyPath is the readiness check of the API server without the check of the roles of Kubernetes. The API server creates these roles about a second after it
// starts, and the administrator does not need them.
const readyPath = "/readyz?exclude=poststarthook/rbac/bootstrap-roles"

// ready sends one readiness check to the API server. If the API server is not ready, the error contains its response.
func ready(ctx context.Context, config *rest.Config) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	asking := rest.CopyConfig(config)
	// Use a separate transport, because a shared transport would keep connections to a server that no longer exists.
	asking.Dial = nil
	tlsConfig, err := rest.TLSConfigFor(asking)
	if err != nil {
		return fmt.Errorf("configure TLS: %w", err)
	}
	transport := &http.Transport{TLSClientConfig: tlsConfig, DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+readyPath, nil)
	if err != nil {
		return fmt.Errorf("check the readiness of the API server: %w", err)
	}
	request.Header.Set("Authorization", "Bearer "+config.BearerToken)
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return fmt.Errorf("check the readiness of the API server: %w", err)
	}
	body, readErr := io.ReadAll(io.LimitReader(response.Body, 4096))
	if err := errors.Join(readErr, response.Body.Close()); err != nil {
		return fmt.Errorf("check the readiness of the API server: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the API server responds with status %s: %.200s", response.Status, body)
	}
	return nil
}
