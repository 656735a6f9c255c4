// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

const (
	// crowdSize is the number of objects that a spec creates concurrently.
	crowdSize = 50
	// pairLimit and slowLimit are targets for a single DevServer: how much longer than a bare Pod it may take to become ready. pairLimit applies to the
	// median, and slowLimit applies to the 99th percentile. crowdLimit is the target for a crowd: the time of the DevServers divided by the time of the bare
	// Pods. Because the machine may be busy, the specs fail only if a measurement exceeds its limit by far: limitTolerance * pairLimit,
	// 2 * limitTolerance * slowLimit, or 2 * crowdLimit.
	pairLimit      = 100 * time.Millisecond
	slowLimit      = 250 * time.Millisecond
	crowdLimit     = 1.15
	limitTolerance = 5
)

// pairCount returns how many pairs of a bare Pod and a DevServer to create one after the other: BERTH_TEST_PAIRS, or 7. With fewer than 100 pairs the slowest
// one counts as the 99th percentile.
func pairCount() int {
	GinkgoHelper()
	named := os.Getenv("BERTH_TEST_PAIRS")
	if named == "" {
		return 7
	}
	number, err := strconv.Atoi(named)
	Expect(err).NotTo(HaveOccurred(), "BERTH_TEST_PAIRS")
	Expect(number).To(BeNumerically(">", 0), "BERTH_TEST_PAIRS")
	return number
}

// addSpeedSpecs adds specs that compare a DevServer with a bare Pod that has the same image, program and probe, on the same node within the same minutes. The
// specs print their measurements, and fail if a measurement misses its target by far.
func addSpeedSpecs() {
	It("starts a single DevServer about as fast as a bare Pod", func(ctx context.Context) {
		namespace := namespaceOfSpec(ctx)
		var bare, ours []float64
		for i := range pairCount() {
			pod, server := barePod(namespace, fmt.Sprintf("bare-%d", i)), minimalServer(namespace, fmt.Sprintf("server-%d", i))
			bare = append(bare, timeToReady(ctx, pod))
			ours = append(ours, timeToReady(ctx, server))
			Expect(k8s.Delete(ctx, pod)).To(Succeed())
			Expect(k8s.Delete(ctx, server)).To(Succeed())
			waitUntilGone(ctx, pod) // a terminating Pod would slow down the next start
			waitUntilGone(ctx, server)
		}
		slices.Sort(bare)
		slices.Sort(ours)
		middle, slow := len(ours)/2, (len(ours)*99+99)/100-1
		added := ours[middle] - bare[middle]
		reportFigure("%d created to Ready, median: bare Pod %.0f ms, DevServer %.0f ms, %+.0f ms (target: at most +%d ms)",
			len(ours), bare[middle], ours[middle], added, pairLimit.Milliseconds())
		reportFigure("%d created to Ready, 99th percentile: bare Pod %.0f ms, DevServer %.0f ms, %+.0f ms (target: at most +%d ms)",
			len(ours), bare[slow], ours[slow], ours[slow]-bare[slow], slowLimit.Milliseconds())
		Expect(added).To(BeNumerically("<", limitTolerance*pairLimit.Milliseconds()))
		Expect(ours[slow] - bare[slow]).To(BeNumerically("<", 2*limitTolerance*slowLimit.Milliseconds()))
	}, SpecTimeout(10*timeout)) // enough for 100 pairs

	It("starts many DevServers about as fast as the same number of bare Pods", func(ctx context.Context) {
		namespace := namespaceOfSpec(ctx)
		bare := createCrowd(ctx, &corev1.PodList{}, func(i int) client.Object { return barePod(namespace, fmt.Sprintf("bare-%d", i)) })
		Expect(k8s.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(namespace))).To(Succeed())
		Eventually(ctx, func(ctx context.Context) (int, error) {
			list := &corev1.PodList{}
			err := k8s.List(ctx, list, client.InNamespace(namespace))
			return len(list.Items), err
		}).Should(BeZero(), "the probes of remaining Pods would slow down the next measurement")
		ours := createCrowd(ctx, &v1alpha1.DevServerList{}, func(i int) client.Object { return minimalServer(namespace, fmt.Sprintf("server-%d", i)) })
		reportFigure("%d at once: bare Pods %.1f s, DevServers %.1f s, %.2f× (target: at most %.2f×)", crowdSize, bare, ours, ours/bare, crowdLimit)
		Expect(ours / bare).To(BeNumerically("<", 2*crowdLimit))
	}, SpecTimeout(3*timeout))
}

// reportFigure adds a report entry that is shown even if the spec passes.
func reportFigure(format string, args ...any) {
	AddReportEntry("measured", ReportEntryVisibilityAlways, fmt.Sprintf(format, args...))
}

// createCrowd creates a crowd and returns the seconds until its last object is ready.
func createCrowd(ctx context.Context, list client.ObjectList, object func(i int) client.Object) float64 {
	GinkgoHelper()
	begun := time.Now()
	var all sync.WaitGroup
	for i := range crowdSize {
		all.Go(func() {
			defer GinkgoRecover()
			Expect(k8s.Create(ctx, object(i))).To(Succeed())
		})
	}
	waitUntilAllReady(ctx, list, object(0).GetNamespace())
	taken := time.Since(begun).Seconds()
	all.Wait()
	return taken
}

// waitUntilAllReady waits until a crowd is ready in a namespace. It uses a watch, because polling each object would cause most of the load of the API server. A
// watch may end at any time; waitUntilAllReady then starts another one.
func waitUntilAllReady(ctx context.Context, list client.ObjectList, namespace string) {
	GinkgoHelper()
	watching, err := client.NewWithWatch(config, client.Options{Scheme: k8s.Scheme(), HTTPClient: httpClient})
	Expect(err).NotTo(HaveOccurred())
	ready := map[string]bool{}
	note := func(object runtime.Object) error {
		if one, ok := object.(client.Object); ok && isReady(one) {
			ready[one.GetName()] = true
		}
		return nil
	}
	for len(ready) < crowdSize {
		Expect(ctx.Err()).NotTo(HaveOccurred(), "%d of %d are ready", len(ready), crowdSize)
		seen, err := watching.Watch(ctx, list, client.InNamespace(namespace))
		Expect(err).NotTo(HaveOccurred())
		Expect(k8s.List(ctx, list, client.InNamespace(namespace))).To(Succeed())
		Expect(meta.EachListItem(list, note)).To(Succeed())
		for open := true; open && len(ready) < crowdSize; {
			var event watch.Event
			if event, open = <-seen.ResultChan(); open {
				Expect(note(event.Object)).To(Succeed())
			}
		}
		seen.Stop()
	}
}

// timeToReady creates an object and returns the milliseconds until it is Ready.
func timeToReady(ctx context.Context, object client.Object) float64 {
	GinkgoHelper()
	begun := time.Now()
	Expect(k8s.Create(ctx, object)).To(Succeed())
	Eventually(ctx, func(ctx context.Context) (bool, error) {
		err := k8s.Get(ctx, client.ObjectKeyFromObject(object), object)
		return isReady(object), err
	}).WithPolling(10 * time.Millisecond).Should(BeTrue())
	return float64(time.Since(begun)) / float64(time.Millisecond)
}

func isReady(object client.Object) bool {
	switch o := object.(type) {
	case *corev1.Pod:
		return slices.ContainsFunc(o.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue })
	case *v1alpha1.DevServer:
		return meta.IsStatusConditionTrue(o.Status.Conditions, v1alpha1.ConditionReady)
	}
	return false
}

var minimalCommand = []string{"/resident", "-dir", "/work", "-serve", "-host", "0.0.0.0"}

// minimalServer returns a DevServer that runs the same program as barePod and has no additional requirements.
func minimalServer(namespace, name string) *v1alpha1.DevServer {
	o := &v1alpha1.DevServer{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	o.Spec.Process.Command = minimalCommand
	o.Spec.Process.Stop.GracePeriodSeconds = ptr.To[int32](5)
	o.Spec.Readiness = &v1alpha1.Probe{HTTPGet: &v1alpha1.HTTPGetProbe{}}
	o.Spec.Runtime = &v1alpha1.RuntimeSpec{Type: v1alpha1.RuntimePod, Pod: &v1alpha1.PodRuntime{
		Image: "localhost/berth/resident:test", ImagePullPolicy: v1alpha1.PullNever,
		Volumes:      []runtime.RawExtension{{Raw: []byte(`{"name":"work","emptyDir":{}}`)}},
		VolumeMounts: []runtime.RawExtension{{Raw: []byte(`{"name":"work","mountPath":"/work"}`)}},
	}}
	return o
}

// barePod returns a Pod without Berth that is equivalent to minimalServer.
func barePod(namespace, name string) *corev1.Pod {
	o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	o.Spec = corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: ptr.To(false), TerminationGracePeriodSeconds: ptr.To[int64](5),
		SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true), SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
		Volumes:         []corev1.Volume{{Name: "work", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
		Containers: []corev1.Container{{
			Name: "main", Image: "localhost/berth/resident:test", ImagePullPolicy: corev1.PullNever, Command: minimalCommand,
			Env:          []corev1.EnvVar{{Name: "PORT", Value: "8080"}},
			VolumeMounts: []corev1.VolumeMount{{Name: "work", MountPath: "/work"}},
			ReadinessProbe: &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{
				HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(8080)},
			}},
			SecurityContext: &corev1.SecurityContext{AllowPrivilegeEscalation: ptr.To(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
		}},
	}
	return o
}
