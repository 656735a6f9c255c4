// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/config/claim"
	"github.com/berth-dev/berth/config/crd"
	"github.com/berth-dev/berth/config/rbac"
	"github.com/berth-dev/berth/internal/endpoint"
	"github.com/berth-dev/berth/internal/manager"
	"github.com/berth-dev/berth/internal/tolerant"
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
		fresh, err := client.New(tolerant.Config(config, omitSilently), client.Options{Scheme: manager.Scheme()})
		if err != nil {
			return err
		}
		for _, kind := range shownKinds {
			if err := fresh.List(ctx, kind.newList(), client.Limit(1)); err != nil {
				return errors.Join(err, establishStuck(ctx, api, time.Now()))
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

// The manager of berth up claims objects at creation through an admission policy (see config/claim). For some seconds after its start, or after a kind is
// defined, the API server rejects every object that such a policy matches. Therefore berth up removes the policy of an earlier run before any object is
// created, and restricts the new binding to a trial namespace until a trial request succeeds.

// dropTimeout bounds how long berth up waits for an unresponsive API server when it shuts down.
const dropTimeout = 5 * time.Second

// awaitUnclaimed removes the policy that a killed run left behind, and waits until objects can be created.
func awaitUnclaimed(ctx context.Context, api client.Client) error {
	if found, err := dropClaim(ctx, api); err != nil || !found {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, establishTimeout)
	defer cancel()
	return poll(ctx, func() error { _, err := tryClaim(ctx, api, corev1.NamespaceDefault); return err })
}

// dropClaim removes the policy and its binding, and reports whether either existed.
func dropClaim(ctx context.Context, api client.Client) (found bool, err error) {
	policy, binding, err := claimObjects("")
	if err != nil {
		return false, fmt.Errorf("remove the admission policy that claims objects: %w", err)
	}
	for _, object := range []*unstructured.Unstructured{binding, policy} {
		switch err := api.Delete(ctx, object); {
		case err == nil:
			found = true
		case !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err):
			return found, fmt.Errorf("remove the admission policy that claims objects: %w", err)
		}
	}
	return found, nil
}

// claimAtCreation installs the policy in the background once the API server accepts it. The returned function removes the policy again. If the policy cannot be
// installed, the controllers claim objects themselves, and each first start waits for one additional write.
func claimAtCreation(ctx context.Context, api client.Client, host string, log logr.Logger) (stop func()) {
	installing, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := installClaim(installing, api, host); err != nil && installing.Err() == nil {
			log.Info("Cannot install the admission policy; controllers claim objects after their creation", "cause", err.Error())
		}
	}()
	return func() {
		cancel()
		<-ended
		dropping, cancel := context.WithTimeout(context.WithoutCancel(ctx), dropTimeout)
		defer cancel()
		if _, err := dropClaim(dropping, api); err != nil {
			log.Info("Cannot remove the admission policy; the next run of berth up removes it", "cause", err.Error())
		}
	}
}

func installClaim(ctx context.Context, api client.Client, host string) error {
	policy, binding, err := claimObjects(host)
	if err != nil {
		return err
	}
	trial := binding.DeepCopy()
	about := map[string]any{"namespaceSelector": map[string]any{"matchLabels": map[string]any{corev1.LabelMetadataName: endpoint.Namespace}}}
	if err := unstructured.SetNestedMap(trial.Object, about, "spec", "matchResources"); err != nil {
		return err
	}
	for _, object := range []*unstructured.Unstructured{policy, trial} {
		if err := serverSideApply(ctx, api, object); err != nil {
			return fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
	tried, cancel := context.WithTimeout(ctx, establishTimeout)
	defer cancel()
	err = poll(tried, func() error {
		claimed, err := tryClaim(tried, api, endpoint.Namespace)
		if err == nil && !claimed {
			err = errors.New("the admission policy is not in effect yet")
		}
		return err
	})
	if err != nil {
		return err
	}
	return serverSideApply(ctx, api, binding)
}

// tryClaim creates an object in a dry run and reports whether the policy claimed it.
func tryClaim(ctx context.Context, api client.Client, namespace string) (bool, error) {
	trial := &v1alpha1.Instance{}
	trial.Namespace, trial.Name, trial.Spec.Process.Command = namespace, "trial", []string{"true"}
	err := api.Create(ctx, trial, client.DryRunAll)
	return len(trial.Finalizers) > 0, err
}

// claimObjects returns the policy that claims objects for a host, and its binding.
func claimObjects(host string) (policy, binding *unstructured.Unstructured, err error) {
	policy, binding = &unstructured.Unstructured{}, &unstructured.Unstructured{}
	text := strings.ReplaceAll(string(claim.Policy), claim.HostPlaceholder, host)
	return policy, binding, errors.Join(yaml.Unmarshal([]byte(text), &policy.Object), yaml.Unmarshal(claim.Binding, &binding.Object))
}
