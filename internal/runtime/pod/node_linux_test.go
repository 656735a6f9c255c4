// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"encoding/json"
	"errors"
	"io"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/conformance"
)

// TestPods_OnANode tests behavior of a real kubelet beyond the conformance suite, in a namespace that enforces the restricted Pod Security Standard.
func TestPods_OnANode(t *testing.T) {
	needCluster(t)
	api := clusterClient(t)
	namespace := namespaceFor(t, api, map[string]string{"pod-security.kubernetes.io/enforce": "restricted"})
	for name, test := range map[string]func(*cluster){
		"the environment is in a Secret":         testEnvironmentInSecret,
		"a missing image is reported":            testMissingImage,
		"a deleted Pod can be replaced":          testDeletedPod,
		"a run finds its inputs":                 testRunInputs,
		"the result outlives a deletion":         testResultAfterDeletion,
		"the result outlives an eviction":        testResultAfterEviction,
		"a result that is not UTF-8 is reported": testBinaryResult,
	} {
		t.Run(name, func(t *testing.T) { test(&cluster{newFixture(t, api, namespace), uuid.NewUUID()}) })
	}
}

func (c *cluster) workloadProcess(incarnation int64, mode ...string) runtime.Process {
	p := c.process(incarnation, "")
	p.Command = append([]string{"/workload"}, mode...)
	return p
}

func (c *cluster) output() (string, error) {
	log, err := c.OpenLog(c.ctx, c.uid)
	if err != nil {
		return "", err
	}
	defer func() { _ = log.Close() }()
	first, end, err := log.Bounds()
	text, readErr := io.ReadAll(io.NewSectionReader(log, first, end-first))
	return string(text), errors.Join(err, readErr)
}

func testEnvironmentInSecret(c *cluster) {
	p := c.workloadProcess(1, "env", "TOKEN")
	p.Env = []string{"TOKEN=hidden $(HOME)"}
	c.Expect(c.Start(c.ctx, p)).To(Succeed())
	c.Expect(c.await(facts.Exited).Exit.Code).To(BeZero())
	c.Expect(c.output()).To(Equal("TOKEN=hidden $(HOME)\n"))
	pod, err := json.Marshal(c.pod(1))
	c.Expect(err).NotTo(HaveOccurred())
	c.Expect(string(pod)).NotTo(ContainSubstring("hidden"))
}

func testMissingImage(c *cluster) {
	for reason, change := range map[string]func(*Config){
		"must not pull": func(config *Config) {
			config.Image, config.PullPolicy = "localhost/berth/nowhere:test", corev1.PullNever
		},
		"invalid image na": func(config *Config) { config.Image = "Not An Image" },
	} {
		p := c.workloadProcess(1, "sleep")
		p.UID = uuid.NewUUID()
		config := Config{Namespace: c.namespace, Image: testImage}
		change(&config)
		var err error
		p.Config, err = json.Marshal(config)
		c.Expect(err).NotTo(HaveOccurred())
		c.Expect(c.Start(c.ctx, p)).To(Succeed())
		c.Eventually(func(g Gomega) {
			found, err := c.Observe(c.ctx, p.UID)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(found).To(HaveLen(1))
			g.Expect(found[0].Phase).To(Equal(facts.Failed))
			g.Expect(found[0].StartError).To(MatchError(ContainSubstring(reason)))
		}).WithTimeout(conformance.Timeout).Should(Succeed(), reason)
	}
}

func testDeletedPod(c *cluster) {
	c.Expect(c.Start(c.ctx, c.workloadProcess(1, "sleep"))).To(Succeed())
	c.await(facts.Running)
	pod := c.pod(1)
	c.Expect(c.api.CoreV1().Pods(c.namespace).Delete(c.ctx, pod.Name, metav1.DeleteOptions{})).To(Succeed())
	exited := c.await(facts.Exited)
	c.Expect(exited.Exit.Signal).To(Equal("SIGTERM"), "the Pod is kept until its exit has been observed")
	c.Expect(c.Start(c.ctx, c.workloadProcess(2, "sleep"))).To(Succeed())
	c.Expect(c.await(facts.Running).Number).To(BeEquivalentTo(2))
	c.Expect(c.pod(1)).To(BeNil())

	// Delete the Pod as kubectl delete --force does. The finalizer keeps the Pod until the kubelet has stopped it.
	now := c.pod(2)
	c.Expect(c.api.CoreV1().Pods(c.namespace).Delete(c.ctx, now.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))})).To(Succeed())
	c.Expect(c.Start(c.ctx, c.workloadProcess(3, "sleep"))).To(Or(Succeed(), MatchError(runtime.ErrOldAlive)))
	c.Eventually(func() types.UID {
		if err := c.Start(c.ctx, c.workloadProcess(3, "sleep")); err != nil {
			c.Expect(err).To(MatchError(runtime.ErrOldAlive))
			return ""
		}
		return c.pod(3).UID
	}).WithTimeout(conformance.Timeout).ShouldNot(BeEmpty())
	c.Expect(c.await(facts.Running).Number).To(BeEquivalentTo(3))
}
