// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/config/crd"
	"github.com/berth-dev/berth/config/rbac"
	"github.com/berth-dev/berth/internal/endpoint"
	"github.com/berth-dev/berth/internal/manager"
)

// installCRDs applies the CustomResourceDefinitions and waits until all kinds are served.
func installCRDs(ctx context.Context, config *rest.Config) error {
	api, err := client.New(config, client.Options{})
	if err != nil {
		return fmt.Errorf("install the CRDs: %w", err)
	}
	files, err := fs.Glob(crd.Bases, "bases/*.yaml")
	if err != nil {
		return fmt.Errorf("install the CRDs: %w", err)
	}
	for _, file := range files {
		data, err := crd.Bases.ReadFile(file)
		if err == nil {
			err = applyEmbedded(ctx, api, file, data)
		}
		if err != nil {
			return fmt.Errorf("install the CRDs: %w", err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, establishTimeout)
	defer cancel()
	return poll(ctx, func() error {
		fresh, err := client.New(config, client.Options{Scheme: manager.Scheme()})
		if err != nil {
			return err
		}
		for _, kind := range shownKinds() {
			if err := fresh.List(ctx, kind.list(), client.Limit(1)); err != nil {
				return err
			}
		}
		return nil
	})
}

// applyEmbedded applies the manifests in a file that is a part of this program.
func applyEmbedded(ctx context.Context, api client.Client, file string, data []byte) error {
	manifests, err := parseManifests(file, data)
	for _, m := range manifests {
		if err := serverSideApply(ctx, api, m.object); err != nil {
			return fmt.Errorf("%s: %s: %w", m.source, m.object.GetName(), err)
		}
	}
	return err
}

// installRoles installs the roles for users, and allows all authenticated users to discover the endpoint for logs and terminals. The endpoint authorizes each
// request separately.
func installRoles(ctx context.Context, api client.Client) error {
	namespace := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": endpoint.Namespace}}}
	if err := serverSideApply(ctx, api, namespace); err != nil {
		return fmt.Errorf("install the roles: %w", err)
	}
	if err := errors.Join(applyEmbedded(ctx, api, "user roles", rbac.UserRoles), applyEmbedded(ctx, api, "endpoint finder", rbac.EndpointFinder)); err != nil {
		return fmt.Errorf("install the roles: %w", err)
	}
	return nil
}
