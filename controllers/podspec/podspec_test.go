// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package podspec

import (
	"encoding/json"
	"testing"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/runtime/pod"
)

func raw(text string) apiruntime.RawExtension { return apiruntime.RawExtension{Raw: []byte(text)} }

func podStartSpec(g *WithT, spec *v1alpha1.PodRuntime) *process.StartSpec {
	object := &v1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "agent", UID: "u"}}
	start := &process.StartSpec{}
	g.Expect(Pod(start, object, "Instance", spec)).To(Succeed())
	return start
}

func TestPod_CopiesSpecIntoConfig(t *testing.T) {
	g := NewWithT(t)
	spec := &v1alpha1.PodRuntime{Image: "agent:1", ServiceAccountName: "agent",
		Volumes: []apiruntime.RawExtension{raw(`{"name": "tmp", "emptyDir": {}}`)}, VolumeMounts: []apiruntime.RawExtension{raw(`{"name": "tmp", "mountPath": "/tmp"}`)},
		Tolerations: []apiruntime.RawExtension{raw(`{"key": "spot", "operator": "Exists"}`)}}
	template := raw(`{"spec": {"volumes": [{"$patch": "delete", "name": "tmp"}]}}`)
	spec.Template = &template
	start := podStartSpec(g, spec)
	g.Expect(start.Blocked).To(BeNil())
	var config pod.Config
	g.Expect(json.Unmarshal(start.Process.Config, &config)).To(Succeed())
	g.Expect(config.Namespace).To(Equal("team"))
	g.Expect(config.Owner.Kind).To(Equal("Instance"))
	g.Expect(*config.Owner.Controller).To(BeTrue())
	g.Expect(config.Volumes[0].EmptyDir).NotTo(BeNil())
	g.Expect(config.Mounts[0].MountPath).To(Equal("/tmp"))
	g.Expect(config.Tolerations[0].Key).To(Equal("spot"))
	g.Expect(config.Template).To(MatchJSON(template.Raw))

	spec.Image = "agent:2"
	g.Expect(podStartSpec(g, spec).Fingerprint).NotTo(Equal(start.Fingerprint), "another image changes the fingerprint")
	g.Expect(podStartSpec(g, nil).Process.Config).To(BeNil())
}

func TestPod_BlocksOnUnknownFields(t *testing.T) {
	g := NewWithT(t)
	template := raw(`{"specc": {}}`)
	for message, spec := range map[string]*v1alpha1.PodRuntime{
		`spec.runtime.pod.volumes[0]: unknown field "empty". Correct it.`: {Volumes: []apiruntime.RawExtension{raw(`{"name": "a", "empty": {}}`)}},
		`spec.runtime.pod.template: unknown field "specc". Correct it.`:   {Template: &template},
		`spec.runtime.pod.volumes[0]: unknown field "Image". Correct it.`: {Volumes: []apiruntime.RawExtension{raw(`{"name": "a", "Image": {"reference": "evil"}}`)}},
		`spec.runtime.pod.volumeClaimTemplates[0].spec: unknown field "size". Correct it.`: {
			VolumeClaimTemplates: []v1alpha1.PodClaim{{Name: "a", Spec: raw(`{"size": "1Gi"}`)}}},
	} {
		start := podStartSpec(g, spec)
		g.Expect(start.Blocked).NotTo(BeNil(), message)
		g.Expect(start.Blocked.Message).To(Equal(message))
		g.Expect(start.Blocked.Reason).To(Equal(v1alpha1.ReasonStartFailed))
	}
}
