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
)

// Claim is a volume that outlives incarnations: it is made with the first, and goes with the owner.
type Claim struct {
	// Name tells the claims of an object apart; a DNS label.
	Name string `json:"name"`
	// MountPath is where the program finds it; absolute.
	MountPath string `json:"mountPath"`
	// Spec is that of the PersistentVolumeClaim. What is there already is not changed by another one.
	Spec corev1.PersistentVolumeClaimSpec `json:"spec"`
}

// errClaimGoes means that a claim waits for the Pods that had it to be gone.
var errClaimGoes = errors.New("is being deleted")

// claimName is the same for all incarnations of an object.
func claimName(uid types.UID, name, claim string) string { return objectName(uid, name) + "-" + claim }

// checkClaims says what is wrong with the claims of a configuration: nil when nothing is.
func checkClaims(claims []Claim) *facts.StartError {
	seen := map[string]bool{}
	for _, claim := range claims {
		switch {
		case len(validation.IsDNS1123Label(claim.Name)) > 0:
			return failed("the claim %q has no name that a volume can have: at most 63 of a-z, 0-9 and dashes", claim.Name)
		case seen[claim.Name]:
			return failed("there are two claims with the name %s", claim.Name)
		case !path.IsAbs(claim.MountPath):
			return failed("the claim %s must be mounted at an absolute path, not at %q", claim.Name, claim.MountPath)
		}
		seen[claim.Name] = true
	}
	return nil
}

// mountClaims puts the claims into the Pod.
func mountClaims(pod *corev1.Pod, p runtime.Process, claims []Claim) {
	for _, claim := range claims {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: claim.Name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claimName(p.UID, p.Name, claim.Name)}}})
		main := &pod.Spec.Containers[0]
		main.VolumeMounts = append(main.VolumeMounts, corev1.VolumeMount{Name: claim.Name, MountPath: claim.MountPath})
	}
}

// makeClaims makes the claims that are not there. A StartError says that there can be none.
func (r *Runtime) makeClaims(ctx context.Context, p runtime.Process, c Config) (*facts.StartError, error) {
	api := r.client.CoreV1().PersistentVolumeClaims(c.Namespace)
	for _, wanted := range c.Claims {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metadata(p, c), Spec: wanted.Spec}
		claim.Name = claimName(p.UID, p.Name, wanted.Name)
		delete(claim.Labels, LabelIncarnation) // it is of all
		there, err := api.Get(ctx, claim.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			there, err = api.Create(ctx, claim, metav1.CreateOptions{})
		}
		switch {
		case apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
			return failed("the API server does not take the claim %s; correct it: %s", wanted.Name, err.Error()), nil
		case err != nil:
			return nil, fmt.Errorf("make the claim %s/%s: %w", c.Namespace, claim.Name, err)
		case there.Labels[LabelUID] != string(p.UID):
			return nil, fmt.Errorf("there is a claim %s/%s already that is not of this object; delete or rename it", c.Namespace, claim.Name)
		case there.DeletionTimestamp != nil:
			return nil, fmt.Errorf("the claim %s/%s %w; another is made when it is gone", c.Namespace, claim.Name, errClaimGoes)
		}
	}
	return nil, nil
}
