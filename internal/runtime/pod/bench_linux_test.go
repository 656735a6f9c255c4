// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/facts"
)

// BenchmarkStart starts bare Pods and Pods of Berth alternately. It measures the time until the API server reports that the bare Pod runs, and the time until
// Observe reports Running for the Pod of Berth. With -benchtime 30x it reports the medians of 30 starts of each kind.
func BenchmarkStart(b *testing.B) {
	needCluster(b)
	api := clusterClient(b)
	c := &cluster{newFixture(b, api, namespaceFor(b, api, nil)), uuid.NewUUID()}
	var bare, ours []time.Duration
	for b.Loop() {
		bare = append(bare, c.startBare())
		c.uid = uuid.NewUUID()
		begun := time.Now()
		c.Expect(c.Start(c.ctx, c.workloadProcess(1, "sleep"))).To(Succeed())
		for c.observed().Phase != facts.Running {
			<-c.Events()
		}
		ours = append(ours, time.Since(begun))
		c.Expect(c.Kill(c.ctx, c.uid, 1)).To(Succeed())
		for c.observed().Alive() {
			<-c.Events()
		}
		c.Expect(c.Forget(c.ctx, c.uid)).To(Succeed())
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(bare), "ms/bare")
	b.ReportMetric(median(ours), "ms/start")
	b.ReportMetric(median(ours)-median(bare), "ms/added")
}

// startBare creates a Pod with the same program and watches it until it runs.
func (c *cluster) startBare() time.Duration {
	c.Helper()
	pods := c.api.CoreV1().Pods(c.namespace)
	begun := time.Now()
	made, err := pods.Create(c.ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "bare-"}, Spec: corev1.PodSpec{
		AutomountServiceAccountToken: ptr.To(false), RestartPolicy: corev1.RestartPolicyNever, ShareProcessNamespace: ptr.To(true),
		Containers: []corev1.Container{{Name: Container, Image: testImage, Command: []string{"/workload", "sleep"}, Stdin: true}},
	}}, metav1.CreateOptions{})
	c.Expect(err).NotTo(HaveOccurred())
	changes, err := pods.Watch(c.ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + made.Name, ResourceVersion: made.ResourceVersion})
	c.Expect(err).NotTo(HaveOccurred())
	defer changes.Stop()
	for change := range changes.ResultChan() {
		if p, is := change.Object.(*corev1.Pod); is && p.Status.Phase == corev1.PodRunning {
			break
		}
	}
	took := time.Since(begun)
	c.Expect(pods.Delete(c.ctx, made.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(1))})).To(Succeed())
	for change := range changes.ResultChan() {
		if change.Type == watch.Deleted {
			break // the clean-up on the node must not slow down the next Pod
		}
	}
	return took
}

func median(all []time.Duration) float64 {
	slices.Sort(all)
	return float64(all[len(all)/2].Microseconds()) / 1000
}
