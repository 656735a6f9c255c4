// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package langserver

import (
	"context"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/lsp/podmain"
	"github.com/berth-dev/berth/internal/lsp/transport"
	"github.com/berth-dev/berth/internal/runtime/pod"
)

// Names and paths that equip adds to the Pod of a multiplexer: the volume for the program of the multiplexer (programVolume, programDir), the volume with the
// keys from its Secret (keysVolume, keysDir), the file to which the multiplexer writes its state (stateFile), and the init container that copies the program
// (installer).
const (
	programVolume, programDir = "berth-program", "/run/berth/program"
	keysVolume, keysDir       = "berth-keys", "/run/berth/keys"
	stateFile                 = corev1.TerminationMessagePathDefault
	installer                 = "berth-install"
)

// command returns the command of the Pod's main process.
func command() []string {
	return []string{programDir + "/" + podmain.Name, "--listen", ":" + strconv.Itoa(transport.Port), "--keys", keysDir, "--state", stateFile}
}

// equip adds the multiplexer and its Secret to the Pod. An init container copies the program, because not every cluster supports image volumes.
func equip(c *pod.Config, secret string, image Image) {
	program := corev1.VolumeMount{Name: programVolume, MountPath: programDir}
	c.Volumes = append(c.Volumes,
		corev1.Volume{Name: programVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: ptr.To(resource.MustParse("64Mi"))}}},
		corev1.Volume{Name: keysVolume, VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: secret}}})
	c.Init = append(c.Init, corev1.Container{
		Name: installer, Image: image.Name, ImagePullPolicy: image.PullPolicy, Command: []string{podmain.Source}, Args: []string{"--install", programDir},
		VolumeMounts: []corev1.VolumeMount{program},
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("16Mi")},
			Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("64Mi")},
		},
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true),
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
	})
	program.ReadOnly = true
	c.Mounts = append(c.Mounts, program, corev1.VolumeMount{Name: keysVolume, MountPath: keysDir, ReadOnly: true})
}

// secret holds what is needed to create the Secret of a multiplexer.
type secret struct {
	namespace, name string
	uid             types.UID
	owner           []metav1.OwnerReference
}

func secretOf(uid types.UID, config PodConfig) secret {
	is := secret{namespace: config.Pod.Namespace, name: config.Secret, uid: uid}
	if config.Pod.Owner != nil {
		is.owner = []metav1.OwnerReference{*config.Pod.Owner}
	}
	return is
}

// secretOfPod returns the secret that a Pod was created with.
func secretOfPod(p *corev1.Pod) secret {
	is := secret{namespace: p.Namespace, uid: types.UID(p.Labels[pod.LabelUID]), owner: p.OwnerReferences}
	for _, volume := range p.Spec.Volumes {
		if volume.Name == keysVolume && volume.Secret != nil {
			is.name = volume.Secret.SecretName
		}
	}
	return is
}

// keys reads the Secret, and creates it if it does not exist. If a user deletes it, keys creates a new Secret and the kubelet updates the Pod's volume.
func (s *inPods) keys(ctx context.Context, is secret) (map[string][]byte, error) {
	api := s.client.CoreV1().Secrets(is.namespace)
	there, err := api.Get(ctx, is.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		var data map[string][]byte
		if data, err = transport.NewKeys(); err != nil {
			return nil, err
		}
		there, err = api.Create(ctx, &corev1.Secret{Data: data, ObjectMeta: metav1.ObjectMeta{
			Name: is.name, OwnerReferences: is.owner,
			Labels: map[string]string{pod.LabelManagedBy: pod.ManagedBy, pod.LabelUID: string(is.uid)},
		}}, metav1.CreateOptions{})
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("get or create Secret %s/%s, which contains the token of the language server: %w", is.namespace, is.name, err)
	case there.Labels[pod.LabelUID] != string(is.uid):
		return nil, fmt.Errorf("the Secret %s/%s already exists and does not belong to this object; delete or rename it", is.namespace, is.name)
	}
	return there.Data, nil
}
