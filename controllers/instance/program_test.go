// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"testing"

	. "github.com/onsi/gomega"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/hook"
	"github.com/berth-dev/berth/internal/procstat"
)

func TestFindProgram_ComparesBootPIDAndStartTime(t *testing.T) {
	g := NewWithT(t)
	scheme := apiruntime.NewScheme()
	g.Expect(v1alpha1.AddToScheme(scheme)).To(Succeed())
	builder := fake.NewClientBuilder().WithScheme(scheme).WithIndex(&v1alpha1.Instance{}, IndexProgram, byProgram)
	for name, runtime := range map[string]v1alpha1.RuntimeType{"host": v1alpha1.RuntimeHost, "pod": v1alpha1.RuntimePod, "docker": v1alpha1.RuntimeDocker, "stopped": ""} {
		object := &v1alpha1.Instance{}
		object.Namespace, object.Name, object.UID = "default", name, types.UID(name)
		object.Spec.Runtime = &v1alpha1.InstanceRuntime{Type: runtime}
		if name != "stopped" {
			object.Status.Process = &v1alpha1.ProcessReference{Incarnation: 7, PID: 12, StartTicks: 345, BootID: "boot"}
		}
		builder = builder.WithObjects(object)
	}
	find := FindProgram(builder.Build())
	object, found := find(t.Context(), "boot", procstat.Process{PID: 12, Ticks: 345})
	g.Expect(found).To(BeTrue())
	g.Expect(object).To(Equal(hook.Object{UID: "host", Incarnation: 7}), "PIDs in containers are others")
	for _, other := range []procstat.Process{{PID: 12, Ticks: 346}, {PID: 13, Ticks: 345}, {}} {
		_, found := find(t.Context(), "boot", other)
		g.Expect(found).To(BeFalse())
	}
	_, found = find(t.Context(), "another boot", procstat.Process{PID: 12, Ticks: 345})
	g.Expect(found).To(BeFalse())
}
