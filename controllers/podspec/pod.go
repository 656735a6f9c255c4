// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package podspec

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	strictjson "sigs.k8s.io/json"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/lifecycle"
	"github.com/berth-dev/berth/internal/runtime/pod"
)

// Pod configures the next incarnation of an object to run in the Pod that spec describes, and adds that configuration to the fingerprint. It does nothing if
// spec is nil. A configuration that Kubernetes would not accept sets start.Blocked; Pod returns an error only if the configuration cannot be encoded.
func Pod(start *process.StartSpec, object process.Object, kind string, spec *v1alpha1.PodRuntime) error {
	if spec == nil {
		return nil
	}
	config, wrong := podConfig(spec)
	if wrong != nil {
		if start.Blocked == nil {
			start.Blocked = &lifecycle.Blocked{Reason: v1alpha1.ReasonStartFailed, Message: wrong.Error() + ". Correct it."}
		}
		return nil
	}
	config.Namespace, config.Owner = object.GetNamespace(), ownerReference(object, kind)
	text, err := json.Marshal(config)
	if err != nil {
		return fmt.Errorf("encode the configuration of the Pod: %w", err)
	}
	start.Process.Config = text
	sum := sha256.Sum256(text)
	start.Fingerprint = append(start.Fingerprint, "pod="+hex.EncodeToString(sum[:]))
	return nil
}

// ownerReference returns the owner reference for objects that Berth creates in the cluster for object, so that they are deleted with it.
func ownerReference(object metav1.Object, kind string) *metav1.OwnerReference {
	reference := metav1.NewControllerRef(object, v1alpha1.GroupVersion.WithKind(kind))
	reference.BlockOwnerDeletion = ptr.To(false) // the finalizer of Berth keeps the object until its Pod is gone
	return reference
}

// podConfig returns the configuration of the Pod. It decodes the parts of the spec that have the schema of Kubernetes.
func podConfig(spec *v1alpha1.PodRuntime) (pod.Config, error) {
	config := pod.Config{
		Image: spec.Image, PullPolicy: corev1.PullPolicy(spec.ImagePullPolicy), NodeSelector: spec.NodeSelector, ServiceAccountName: spec.ServiceAccountName,
		Resources: corev1.ResourceRequirements{Limits: quantities(spec.Resources.Limits), Requests: quantities(spec.Resources.Requests)},
	}
	err := cmp.Or(
		readAll("volumes", spec.Volumes, &config.Volumes),
		readAll("volumeMounts", spec.VolumeMounts, &config.Mounts),
		readAll("tolerations", spec.Tolerations, &config.Tolerations),
	)
	if err != nil {
		return config, err
	}
	for i, claim := range spec.VolumeClaimTemplates {
		read := pod.Claim{Name: claim.Name, MountPath: claim.MountPath}
		if err := readStrictly(fmt.Sprintf("volumeClaimTemplates[%d].spec", i), claim.Spec, &read.Spec); err != nil {
			return config, err
		}
		config.Claims = append(config.Claims, read)
	}
	if spec.Template != nil {
		// The template is a patch, which may contain fields that a Pod does not have, such as $patch. So only its top-level fields are checked.
		var known struct {
			Metadata map[string]any `json:"metadata"`
			Spec     map[string]any `json:"spec"`
		}
		if err := readStrictly("template", *spec.Template, &known); err != nil {
			return config, err
		}
		config.Template = spec.Template.Raw
	}
	return config, nil
}

func quantities(of map[string]resource.Quantity) corev1.ResourceList {
	if len(of) == 0 {
		return nil
	}
	list := make(corev1.ResourceList, len(of))
	for name, quantity := range of {
		list[corev1.ResourceName(name)] = quantity
	}
	return list
}

func readAll[T any](name string, parts []apiruntime.RawExtension, into *[]T) error {
	*into = make([]T, len(parts))
	for i := range parts {
		if err := readStrictly(fmt.Sprintf("%s[%d]", name, i), parts[i], &(*into)[i]); err != nil {
			return err
		}
	}
	return nil
}

// readStrictly decodes part and rejects unknown fields, because the API server does not check them. Field names are case-sensitive, so that another spelling
// of a field cannot bypass an admission policy.
func readStrictly(name string, part apiruntime.RawExtension, into any) error {
	unknown, err := strictjson.UnmarshalStrict(part.Raw, into)
	if err = errors.Join(append(unknown, err)...); err != nil {
		return fmt.Errorf("spec.runtime.pod.%s: %s", name, strings.TrimPrefix(err.Error(), "json: "))
	}
	return nil
}
