// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"testing"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/runtime"
)

// If the manager has no runtime, a condition of the object reports this. The reconciler then does not read the Secret that the environment names.
func TestDisabledRuntime_StallsObjects(t *testing.T) {
	b := newFixture(t, func(i *v1alpha1.Instance) {
		i.Spec.Process.Env = []v1alpha1.EnvVar{{Name: "TOKEN", ValueFrom: &v1alpha1.EnvVarSource{
			SecretKeyRef: &v1alpha1.KeyRef{Name: "not-there", Key: "token"},
		}}}
	})
	b.r.Runtimes = runtime.NewRegistry(runtime.NoRuntime{Reason: "This manager was started without a runtime."}, logr.Discard())
	b.reconcile()
	stalled := b.condition(v1alpha1.ConditionStalled)
	b.Expect(stalled.Status).To(Equal(metav1.ConditionTrue))
	b.Expect(stalled.Reason).To(Equal(v1alpha1.ReasonRuntimeUnavailable))
	b.Expect(b.object().Status.Incarnation).To(BeZero())
	writes := b.writes
	for range 3 {
		b.Expect(b.reconcile().RequeueAfter).To(BeZero())
	}
	b.Expect(b.writes).To(Equal(writes), "a reconcile at rest writes nothing")

	b.r.Runtimes = runtime.NewRegistry(b.rt, logr.Discard())
	b.reconcile()
	b.Expect(b.condition(v1alpha1.ConditionStalled).Reason).To(Equal(v1alpha1.ReasonInvalidEnvironment), "with a runtime the Secret is read")
}
