// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/conformance"
)

// resultsProcess returns a process with Results set, and with the paths of its result file, artifacts and inputs in its environment.
func (c *cluster) resultsProcess(mode ...string) runtime.Process {
	p, place := c.workloadProcess(1, mode...), c.Place(c.uid)
	p.Results = true
	p.Env = []string{"BERTH_RESULT_FILE=" + place.File, "BERTH_ARTIFACTS=" + place.Artifacts, "GIVEN=" + place.Inputs + "/earlier"}
	return p
}

func testRunInputs(c *cluster) {
	p := c.resultsProcess("results", "three findings")
	p.Inputs = map[string][]byte{"earlier": []byte("before")}
	c.Expect(c.Start(c.ctx, p)).To(Succeed())
	c.Expect(c.await(facts.Exited).Exit.Code).To(BeZero(), "as a user other than root")
	c.Expect(c.Results(c.uid).Head).To(BeEquivalentTo("three findings"))
	text, known := c.LastWords(c.uid, 1)
	c.Expect(known).To(BeTrue())
	c.Expect(text).To(Equal("three findings"))
	_, known = c.LastWords(c.uid, 2)
	c.Expect(known).To(BeFalse())

	// A Pod that cannot be created leaves nothing behind. (The clean-up of every test checks the same for forgotten Pods.)
	p = c.resultsProcess("results", "nothing")
	p.UID, p.Inputs = uuid.NewUUID(), map[string][]byte{"earlier": nil}
	p.Config = c.config(`{"spec": {"hostNetwork": true}}`)
	c.Expect(c.Start(c.ctx, p)).To(Succeed())
	_, err := c.api.CoreV1().Secrets(c.namespace).Get(c.ctx, inputsName(podName(p.UID, p.Name, 1)), metav1.GetOptions{})
	c.Expect(apierrors.IsNotFound(err)).To(BeTrue())
}

func testResultAfterDeletion(c *cluster) {
	c.startWithResult("so far")
	c.Expect(c.api.CoreV1().Pods(c.namespace).Delete(c.ctx, c.pod(1).Name, metav1.DeleteOptions{})).To(Succeed())
	c.Expect(c.await(facts.Exited).Exit.Signal).To(Equal("SIGTERM"))
	c.Expect(c.Results(c.uid).Head).To(BeEquivalentTo("so far"))
}

// The node terminates the Pod at its deadline, in the same way as when resources run low.
func testResultAfterEviction(c *cluster) {
	c.startWithResult("so far")
	_, err := c.api.CoreV1().Pods(c.namespace).Patch(c.ctx, c.pod(1).Name, types.MergePatchType, []byte(`{"spec": {"activeDeadlineSeconds": 1}}`), metav1.PatchOptions{})
	c.Expect(err).NotTo(HaveOccurred())
	c.Expect(c.await(facts.Exited).Exit.Message).To(ContainSubstring("the node terminated the Pod: DeadlineExceeded"))
	c.Expect(c.Results(c.uid).Head).To(BeEquivalentTo("so far"))
}

// startWithResult starts a program that writes a result and continues to run.
func (c *cluster) startWithResult(text string) {
	c.Helper()
	c.Expect(c.Start(c.ctx, c.resultsProcess("say", text))).To(Succeed())
	c.await(facts.Running)
	c.Eventually(c.output).WithTimeout(conformance.Timeout).Should(Equal("ready\n"))
	_, known := c.LastWords(c.uid, 1)
	c.Expect(known).To(BeFalse(), "the program may still write more")
	c.Expect(c.Results(c.uid)).To(Equal(runtime.Results{}))
}

func testBinaryResult(c *cluster) {
	c.Expect(c.Start(c.ctx, c.resultsProcess("binary"))).To(Succeed())
	c.await(facts.Exited)
	c.Expect(c.Results(c.uid)).To(And(HaveField("File", true), HaveField("SHA256", ""), HaveField("Problem", ContainSubstring("not valid UTF-8"))))
}

func TestInputs_AreStoredUntilPodIsForgotten(t *testing.T) {
	c := newCluster(t, map[string]string{"pod-security.kubernetes.io/enforce": "restricted"})
	p := c.process(1, "")
	p.Results, p.Inputs = true, map[string][]byte{"execute.jsonl": []byte("{}\n")}
	secrets := func() []corev1.Secret {
		list, err := c.api.CoreV1().Secrets(c.namespace).List(c.ctx, metav1.ListOptions{})
		c.Expect(err).NotTo(HaveOccurred())
		return list.Items
	}
	// A Pod that the namespace rejects leaves no Secret.
	refused := p
	refused.Config = c.config(`{"spec": {"hostNetwork": true}}`)
	c.Expect(c.Start(c.ctx, refused)).To(Succeed())
	c.Expect(c.observed().StartError).To(MatchError(ContainSubstring("Pod Security level of the namespace rejects")))
	c.Expect(secrets()).To(BeEmpty())

	// The Secret of an unfinished start is replaced.
	p.Incarnation = 2
	config, wrong := parse(p)
	c.Expect(wrong).NotTo(HaveOccurred())
	half := p
	half.Inputs = map[string][]byte{"execute.jsonl": nil}
	c.Expect(c.makeSecrets(c.ctx, half, config, nil)).To(Succeed())
	c.Expect(c.Start(c.ctx, p)).To(Succeed())
	c.Expect(secrets()).To(ConsistOf(And(HaveField("Name", inputsName(c.pod(2).Name)), HaveField("Immutable", HaveValue(BeTrue())),
		HaveField("Data", HaveKeyWithValue("execute.jsonl", []byte("{}\n"))))))
	c.Expect(c.Kill(c.ctx, c.uid, 2)).To(Succeed())
	c.await(facts.Exited)
	c.Expect(c.Forget(c.ctx, c.uid)).To(Succeed())
	c.Expect(secrets()).To(BeEmpty())
}
