// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"encoding/json"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

// A template cannot replace the Secret in a volume of Berth, nor mount that volume in another container.
func TestTemplate_LeavesVolumesOfBerthAlone(t *testing.T) {
	keys := Config{
		Namespace: "default", Image: "image:1",
		Volumes: []corev1.Volume{
			{Name: "berth-program", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: ptr.To(resource.MustParse("64Mi"))}}},
			{Name: "berth-keys", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "lsp-go"}}},
			{Name: "cache", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		},
		Mounts: []corev1.VolumeMount{{Name: "berth-keys", MountPath: "/run/berth/keys", ReadOnly: true}, {Name: "berth-program", MountPath: "/run/berth/program"}},
	}
	for template, refuses := range map[string]string{
		`{"spec": {"volumes": [{"name": "berth-keys", "secret": {"secretName": "admin-token"}}]}}`:                                                   "berth-keys",
		`{"spec": {"volumes": [{"name": "berth-keys", "$patch": "delete"}]}}`:                                                                        "berth-keys",
		`{"spec": {"volumes": [{"name": "berth-program", "emptyDir": {"sizeLimit": "64Mi"}, "hostPath": {"path": "/"}}]}}`:                           "berth-program",
		`{"spec": {"containers": [{"name": "side", "image": "side:1", "volumeMounts": [{"name": "berth-keys", "mountPath": "/keys"}]}]}}`:            "berth-keys",
		`{"spec": {"initContainers": [{"name": "first", "image": "side:1", "volumeMounts": [{"name": "berth-keys", "mountPath": "/keys"}]}]}}`:       "berth-keys",
		`{"spec": {"containers": [{"name": "main", "volumeMounts": [{"name": "cache", "mountPath": "/run/berth/keys"}]}]}}`:                          "berth-keys",
		`{"spec": {"containers": [{"name": "main", "volumeMounts": [{"name": "cache", "mountPath": "/cache"}]}], "volumes": [{"name": "another"}]}}`: "",
	} {
		g := NewWithT(t)
		keys.Template = json.RawMessage(template)
		config, err := json.Marshal(keys)
		g.Expect(err).NotTo(HaveOccurred())
		p := process()
		p.Config = config
		c, refused := parse(p)
		g.Expect(refused).NotTo(HaveOccurred())
		_, refused = build(p, c, variables{})
		if refuses == "" {
			g.Expect(refused).NotTo(HaveOccurred(), template)
			continue
		}
		g.Expect(refused).To(MatchError(ContainSubstring("the volume "+refuses)), template)
	}
}
