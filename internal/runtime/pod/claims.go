// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"fmt"
	"path"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/oci"
)

// Claim is a volume that outlives incarnations: it is created with the first incarnation and deleted with the owner.
type Claim struct {
	// Name is the unique name of the claim within the object; a DNS label.
	Name string `json:"name"`
	// MountPath is the absolute path at which the volume is mounted.
	MountPath string `json:"mountPath"`
	// Spec is the spec of the PersistentVolumeClaim. A change does not affect an existing claim.
	Spec corev1.PersistentVolumeClaimSpec `json:"spec"`
}

// errClaimGoes is the error for a claim that is being deleted. The deletion waits until no Pod uses the claim.
var errClaimGoes = errors.New("is being deleted")

// claimName returns the same name for all incarnations of an object.
func claimName(uid types.UID, name, claim string) string { return objectName(uid, name) + "-" + claim }

// checkClaims validates the claims of a configuration. It returns nil if they are valid.
func checkClaims(claims []Claim) *facts.StartError {
	seen := map[string]bool{}
	for _, claim := range claims {
		switch {
		case len(validation.IsDNS1123Label(claim.Name)) > 0:
			return oci.Failed("invalid claim name %q: use at most 63 characters of a-z, 0-9 and dashes", claim.Name)
		case seen[claim.Name]:
			return oci.Failed("two claims have the name %s", claim.Name)
		case !path.IsAbs(claim.MountPath):
			return oci.Failed("claim %s must be mounted at an absolute path, not at %q", claim.Name, claim.MountPath)
		}
		seen[claim.Name] = true
	}
	return nil
}

// mountClaims adds the claims to the Pod.
func mountClaims(pod *corev1.Pod, p runtime.Process, claims []Claim) {
	for _, claim := range claims {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: claim.Name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claimName(p.UID, p.Name, claim.Name)}}})
		main := &pod.Spec.Containers[0]
		main.VolumeMounts = append(main.VolumeMounts, corev1.VolumeMount{Name: claim.Name, MountPath: claim.MountPath})
	}
}

// makeClaims creates the missing claims. It returns a StartError if the API server rejects a claim.
func (r *Runtime) makeClaims(ctx context.Context, p runtime.Process, c Config) (*facts.StartError, error) {
	api := r.client.CoreV1().PersistentVolumeClaims(c.Namespace)
	for _, wanted := range c.Claims {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metadata(p, c), Spec: wanted.Spec}
		claim.Name = claimName(p.UID, p.Name, wanted.Name)
		delete(claim.Labels, LabelIncarnation) // the claim belongs to all incarnations
		there, err := api.Get(ctx, claim.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			there, err = api.Create(ctx, claim, metav1.CreateOptions{})
		}
		switch {
		case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
			return oci.Failed("the API server rejects claim %s; correct it: %s", wanted.Name, err.Error()), nil
		case err != nil:
			return nil, fmt.Errorf("create PersistentVolumeClaim %s/%s: %w", c.Namespace, claim.Name, err)
		case there.Labels[LabelUID] != string(p.UID):
			return nil, fmt.Errorf("PersistentVolumeClaim %s/%s already exists and does not belong to this object; delete or rename it", c.Namespace, claim.Name)
		case there.DeletionTimestamp != nil:
			return nil, fmt.Errorf("PersistentVolumeClaim %s/%s %w; Berth creates a new one after its deletion", c.Namespace, claim.Name, errClaimGoes)
		}
	}
	return nil, nil
}
