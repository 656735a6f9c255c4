// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package languageserver

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/podspec"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/lsp/transport"
	"github.com/berth-dev/berth/internal/runtime/langserver"
)

// inPod reports whether the server and its multiplexer run in a Pod.
func inPod(server *v1alpha1.LanguageServer) bool {
	return podspec.Type(server.Spec.Runtime) == v1alpha1.RuntimePod
}

// preparePod sets the Service and the Pod of the server, and the name of the Secret that clients authenticate with. A change of the Pod counts as a change of
// the spec.
func (k *Kind) preparePod(ctx context.Context, server *v1alpha1.LanguageServer, config []byte, start *process.StartSpec) error {
	if err := podspec.Pod(start, server, "LanguageServer", server.Spec.Runtime.Pod); err != nil || start.Blocked != nil {
		return err
	}
	both := langserver.PodConfig{Secret: addressName(server)}
	for _, part := range []struct {
		text []byte
		into any
	}{{config, &both.Config}, {start.Process.Config, &both.Pod}} {
		if err := json.Unmarshal(part.text, part.into); err != nil {
			return fmt.Errorf("read the configuration for the Pod: %w", err)
		}
	}
	var err error
	if start.Process.Config, err = json.Marshal(both); err != nil {
		return fmt.Errorf("encode the configuration of the Pod: %w", err)
	}
	service := podspec.Service(server, "LanguageServer", addressName(server), "lsp", transport.Port)
	service.Spec.PublishNotReadyAddresses = true // the multiplexer accepts clients before the server is ready, and holds their requests
	start.Blocked, err = podspec.Services{Client: k.client, Reader: k.reader}.Serve(ctx, server, "LanguageServer", service)
	return err
}

// addressName returns the name of the Service of a server in a Pod, which is also the name of the Secret with its token and certificate.
func addressName(server *v1alpha1.LanguageServer) string {
	return podspec.ServiceName("lsp", "lsp-"+server.Name, server)
}

// podEndpoint returns the URL that clients in the cluster connect to.
func podEndpoint(server *v1alpha1.LanguageServer) string {
	return fmt.Sprintf("https://%s.%s.svc:%d%s", addressName(server), server.Namespace, transport.Port, transport.ClientPath)
}
