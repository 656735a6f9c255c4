// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package languageserver

import (
	"encoding/json"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/lsp"
	"github.com/berth-dev/berth/internal/runtime/langserver"
)

func withPod(image string) func(*v1alpha1.LanguageServer) {
	return func(server *v1alpha1.LanguageServer) {
		server.Spec.Runtime = &v1alpha1.RuntimeSpec{Type: v1alpha1.RuntimePod, Pod: &v1alpha1.PodRuntime{Image: image}}
	}
}

func (s *fixture) podConfig(start process.StartSpec) (config langserver.PodConfig) {
	s.t.Helper()
	s.Expect(start.Blocked).To(BeNil())
	s.Expect(json.Unmarshal(start.Process.Config, &config)).To(Succeed())
	return config
}

func TestPod_HasServiceAndClusterEndpoint(t *testing.T) {
	s := newFixture(t)
	server := gopls(withPod("gopls:1"))
	first := s.prepare(server)
	config := s.podConfig(first)
	s.Expect(config.Language).To(Equal("go"))
	s.Expect(config.Secret).To(Equal("lsp-go"))
	s.Expect(config.Pod).To(And(HaveField("Image", "gopls:1"), HaveField("Namespace", "default"), HaveField("Owner.UID", server.UID)))
	service := &corev1.Service{}
	s.Expect(s.store.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "lsp-go"}, service)).To(Succeed())
	s.Expect(service.Spec.PublishNotReadyAddresses).To(BeTrue())
	s.Expect(service.Spec.Ports).To(ConsistOf(HaveField("Port", int32(7077))))
	s.Expect(first.Process.Dir).To(Equal("/src"))

	s.kind.ObserveStopped(t.Context(), server)
	s.Expect(server.Status.Endpoint).To(Equal("https://lsp-go.default.svc:7077/lsp"))
	s.Expect(s.prepare(gopls(withPod("gopls:1"))).Fingerprint).To(Equal(first.Fingerprint))
	s.Expect(s.prepare(gopls(withPod("gopls:2"))).Fingerprint).NotTo(Equal(first.Fingerprint), "a change of the Pod changes the fingerprint")
}

func TestPod_BlocksOnForeignService(t *testing.T) {
	other := &corev1.Service{}
	other.Namespace, other.Name = "default", "lsp-go"
	s := newFixture(t, other)
	s.Expect(s.prepare(gopls(withPod("gopls:1"))).Blocked).To(HaveValue(And(
		HaveField("Reason", v1alpha1.ReasonNameTaken), HaveField("Conflict", true), HaveField("Message", ContainSubstring("does not belong to this LanguageServer")))))
}

func TestAsleep_IsFalseWithoutPod(t *testing.T) {
	s := newFixture(t)
	server := gopls(onDemand, withPod("gopls:1"))
	s.backend.report = servingReport(1)
	s.backend.changeReport(func(r *lsp.Report) { r.Clients, r.IdleSince = 0, epoch })
	s.advance(idleTimeout(server))
	s.Expect(s.kind.Asleep(t.Context(), server, s.clock.Now())).To(BeTrue())
	process.SetCondition(server, epoch, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonIdle, "")
	s.backend.gone, s.backend.report = true, nil
	s.Expect(s.kind.Asleep(t.Context(), server, s.clock.Now())).To(BeFalse(), "no process would listen for a client")
	s.backend.gone = false
	s.Expect(s.kind.Asleep(t.Context(), server, s.clock.Now())).To(BeTrue())
}
