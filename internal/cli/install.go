// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/config/crd"
	"github.com/berth-dev/berth/config/rbac"
	"github.com/berth-dev/berth/internal/endpoint"
)

// installCRDs applies the CustomResourceDefinitions and waits until all kinds are served.
func installCRDs(ctx context.Context, config *rest.Config) error {
	scheme := runtime.NewScheme()
	if err := apiextensionsv1.AddToScheme(scheme); err != nil {
		return fmt.Errorf("install the CRDs: %w", err)
	}
	api, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return fmt.Errorf("install the CRDs: %w", err)
	}
	files, err := fs.Glob(crd.Bases, "bases/*.yaml")
	if err != nil {
		return fmt.Errorf("install the CRDs: %w", err)
	}
	var installed []string
	for _, file := range files {
		data, err := crd.Bases.ReadFile(file)
		if err != nil {
			return fmt.Errorf("install the CRDs: %w", err)
		}
		definition := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(data, &definition.Object); err != nil {
			return fmt.Errorf("install the CRDs: %s: %w", file, err)
		}
		if err := serverSideApply(ctx, api, definition); err != nil {
			return fmt.Errorf("install the CRDs: %s: %w", file, err)
		}
		installed = append(installed, definition.GetName())
	}
	return awaitEstablished(ctx, api, config, installed)
}

func awaitEstablished(ctx context.Context, api client.Client, config *rest.Config, installed []string) error {
	ctx, cancel := context.WithTimeout(ctx, establishTimeout)
	defer cancel()
	for _, name := range installed {
		err := poll(ctx, func() error {
			definition := &apiextensionsv1.CustomResourceDefinition{}
			if err := api.Get(ctx, client.ObjectKey{Name: name}, definition); err != nil {
				return err
			}
			for _, condition := range definition.Status.Conditions {
				if condition.Type == apiextensionsv1.Established && condition.Status == apiextensionsv1.ConditionTrue {
					return nil
				}
			}
			return fmt.Errorf("%s is not established", name)
		})
		if err != nil {
			return fmt.Errorf("install the CRDs: %w", err)
		}
	}
	// The condition Established becomes true shortly before a kind is served.
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return fmt.Errorf("install the CRDs: %w", err)
	}
	return poll(ctx, func() error {
		fresh, err := client.New(config, client.Options{Scheme: scheme})
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

// installRoles installs the roles for users, and allows all authenticated users to discover the endpoint for logs and terminals. The endpoint authorizes each
// request separately.
func installRoles(ctx context.Context, api client.Client) error {
	namespace := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": endpoint.Namespace}}}
	if err := serverSideApply(ctx, api, namespace); err != nil {
		return fmt.Errorf("install the roles: %w", err)
	}
	for _, manifests := range [][]byte{rbac.UserRoles, rbac.EndpointFinder} {
		objects, err := decodeAll(manifests)
		if err != nil {
			return fmt.Errorf("install the roles: %w", err)
		}
		for _, role := range objects {
			if err := serverSideApply(ctx, api, role); err != nil {
				return fmt.Errorf("install the roles: %s: %w", role.GetName(), err)
			}
		}
	}
	return nil
}

// decodeAll returns the objects in a YAML stream.
func decodeAll(manifests []byte) (objects []*unstructured.Unstructured, err error) {
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifests), 4096)
	for {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(&object.Object); errors.Is(err, io.EOF) {
			return objects, nil
		} else if err != nil {
			return nil, err
		}
		objects = append(objects, object)
	}
}
