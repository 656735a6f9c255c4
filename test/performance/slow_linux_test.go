// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package performance

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

const (
	// otherObjects is the number of objects without a slow stop. They are restarted one after another.
	otherObjects = 10
	restarts     = 40
	// slowStops is the number of slow stops that are in progress at the same time. It is larger than the number of workers of the manager.
	slowStops = 12
	slowGrace = 65
)

// TestSlowStop_DoesNotDelayOtherObjects stops programs that ignore SIGTERM and checks that, during these slow stops, other objects restart as fast as before.
func TestSlowStop_DoesNotDelayOtherObjects(t *testing.T) {
	g := NewWithT(t)
	startManager(t, stateDirectory(t), 0)
	namespace := newNamespace(t)
	f := follow(t, namespace)
	inParallel(t, otherObjects+slowStops, 8, func(i int) error {
		ready := f.expect(fmt.Sprintf("slow-%d", i), isReady)
		instance := newInstance(namespace, fmt.Sprintf("slow-%d", i), workloadPath, "idle")
		if i >= otherObjects {
			instance.Spec.Process.Command = []string{workloadPath, "stubborn"}
			instance.Spec.Process.Stop.GracePeriodSeconds = ptr.To[int32](slowGrace)
		}
		if err := k8s.Create(t.Context(), instance); err != nil {
			return err
		}
		_, err := ready()
		return err
	})
	alone := restartTimes(t, f, namespace, "alone")
	for i := range slowStops {
		g.Expect(patchSpec(t, namespace, otherObjects+i, `{"spec":{"state":"Stopped"}}`)).To(Succeed())
	}
	duringSlowStops := restartTimes(t, f, namespace, "beside")
	g.Expect(countStopping(t, namespace)).To(Equal(slowStops), "all slow stops must still be in progress")
	addFigure("restart until ready: p50, p99", "%.1f ms, %.1f ms", median(alone), percentile(alone, 99))
	addFigure("restart until ready beside 12 slow stops: p50, p99", "%.1f ms, %.1f ms", median(duringSlowStops), percentile(duringSlowStops, 99))
	expectAtMost(t, "restart beside 12 slow stops / without, p50", median(duringSlowStops)/median(alone), 1.1, 2, "×")
	for i := range slowStops {
		g.Expect(patchSpec(t, namespace, otherObjects+i, `{"spec":{"process":{"stop":{"gracePeriodSeconds":0}}}}`)).To(Succeed())
	}
}

// restartTimes restarts objects one after another and returns the times until they were ready again.
func restartTimes(t *testing.T, f *follower, namespace, token string) (times []float64) {
	t.Helper()
	g := NewWithT(t)
	for i := range restarts {
		token := fmt.Sprintf("%s-%d", token, i)
		again := f.expect(fmt.Sprintf("slow-%d", i%otherObjects), func(instance *v1alpha1.Instance) bool {
			return isReady(instance) && instance.Status.ObservedRestartToken == token
		})
		began := time.Now()
		g.Expect(patchSpec(t, namespace, i%otherObjects, fmt.Sprintf(`{"spec":{"restartToken":%q}}`, token))).To(Succeed())
		at, err := again()
		g.Expect(err).NotTo(HaveOccurred())
		times = append(times, milliseconds(at.Sub(began)))
	}
	return times
}

func patchSpec(t *testing.T, namespace string, i int, patch string) error {
	instance := &v1alpha1.Instance{}
	instance.Namespace, instance.Name = namespace, fmt.Sprintf("slow-%d", i)
	return k8s.Patch(t.Context(), instance, client.RawPatch(types.MergePatchType, []byte(patch)))
}

// countStopping counts the objects whose stop is in progress.
func countStopping(t *testing.T, namespace string) (n int) {
	t.Helper()
	var list v1alpha1.InstanceList
	NewWithT(t).Expect(k8s.List(t.Context(), &list, client.InNamespace(namespace))).To(Succeed())
	for i := range list.Items {
		if list.Items[i].Status.Stopping != nil {
			n++
		}
	}
	return n
}
