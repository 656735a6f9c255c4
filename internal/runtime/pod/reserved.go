// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime/oci"
)

// reservedPrefix is the prefix of the names of volumes that Berth adds to a Pod for its own use, such as the one with the keys of a language server.
const reservedPrefix = "berth-"

// touchesReserved rejects a template that changes a volume of Berth or its mounts. Such a template could replace the contents, or expose them to a container.
func touchesReserved(before, after corev1.PodSpec) *facts.StartError {
	for _, volume := range before.Volumes {
		if !strings.HasPrefix(volume.Name, reservedPrefix) {
			continue
		}
		if !equality.Semantic.DeepEqual(volumesOf(before, volume.Name), volumesOf(after, volume.Name)) ||
			!equality.Semantic.DeepEqual(mountsOfVolume(before, volume.Name), mountsOfVolume(after, volume.Name)) {
			return oci.Failed("spec.runtime.pod.template changes or mounts the volume %s, which is reserved for Berth; remove it from the template", volume.Name)
		}
	}
	return nil
}

func volumesOf(spec corev1.PodSpec, name string) []corev1.Volume {
	return slices.DeleteFunc(slices.Clone(spec.Volumes), func(v corev1.Volume) bool { return v.Name != name })
}

// mountsOfVolume returns the mounts of the volume by container name.
func mountsOfVolume(spec corev1.PodSpec, name string) map[string][]corev1.VolumeMount {
	mounts := map[string][]corev1.VolumeMount{}
	for _, container := range slices.Concat(spec.InitContainers, spec.Containers) {
		for _, mount := range container.VolumeMounts {
			if mount.Name == name {
				mounts[container.Name] = append(mounts[container.Name], mount)
			}
		}
	}
	return mounts
}
