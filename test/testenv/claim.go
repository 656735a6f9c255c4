// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/config/claim"
)

// claimTimeout bounds the time until the API server applies a policy on a busy machine.
const claimTimeout = time.Minute

// InstallClaimPolicy installs the policy that claims objects at their creation, as berth up does, and waits until the policy takes effect.
func InstallClaimPolicy(ctx context.Context, api client.Client) error {
	for _, text := range [][]byte{claim.Policy, claim.Binding} {
		object := &unstructured.Unstructured{}
		err := yaml.Unmarshal(text, &object.Object)
		if err == nil {
			err = api.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("tests"))
		}
		if err != nil {
			return fmt.Errorf("install the policy that claims objects at their creation: %w", err)
		}
	}
	return wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, claimTimeout, true, func(ctx context.Context) (bool, error) {
		trial := &v1alpha1.Instance{}
		trial.Namespace, trial.Name, trial.Spec.Process.Command = "default", "trial", []string{"true"}
		err := api.Create(ctx, trial, client.DryRunAll)
		if apierrors.IsServiceUnavailable(err) {
			err = nil // the API server does not serve the kinds yet
		}
		return len(trial.Finalizers) > 0, err
	})
}
