// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package languageserver

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/lsp"
)

func (s *fixture) prepare(server *v1alpha1.LanguageServer) process.StartSpec {
	s.t.Helper()
	var start process.StartSpec
	start.Process.Dir = server.Spec.Process.WorkingDir
	s.Expect(s.kind.Prepare(s.t.Context(), server, nil, &start)).To(Succeed())
	return start
}

func raw(text string) *apiruntime.RawExtension { return &apiruntime.RawExtension{Raw: []byte(text)} }

func withFullSpec(server *v1alpha1.LanguageServer) {
	spec := &server.Spec
	n := func(n int32) *int32 { return &n }
	size := func(n int64) *resource.Quantity { return resource.NewQuantity(n, resource.BinarySI) }
	spec.InitializationOptions, spec.Settings = raw(`{"b": 1.50, "a":[null]}`), raw(`{"gopls":{"z":true,"a":{}}}`)
	spec.Limits = v1alpha1.LanguageServerLimits{
		MaxHeaderSize: size(1), MaxMessageSize: size(2), MaxClientMessageSize: size(3), MaxClients: n(4), MaxOpenDocuments: n(5), MaxDocumentsSize: size(6),
		MaxInFlight: n(7), MaxQueueSize: size(8), RequestTimeoutSeconds: n(9), MaxMemory: size(10),
	}
	spec.Hold = v1alpha1.HoldPolicy{TimeoutSeconds: n(11), MaxRequests: n(12), MaxSize: size(13)}
	spec.Health = v1alpha1.LanguageServerHealth{
		PingAfterSeconds: n(14), HangTimeoutSeconds: n(15),
		Canary: &v1alpha1.Canary{Method: "workspace/symbol", Params: raw(`{ "query": "main" }`), PeriodSeconds: n(16)},
	}
	spec.StartupTimeoutSeconds, spec.WhileIndexing, spec.ReplayMethods = n(17), v1alpha1.IndexingHold, []string{"my/read"}
}

func TestPrepare_PassesSpecToMultiplexer(t *testing.T) {
	s := newFixture(t)
	start := s.prepare(gopls(withFullSpec))
	s.Expect(start.RecordFirst).To(BeTrue())
	var got lsp.Config
	s.Expect(json.Unmarshal(start.Process.Config, &got)).To(Succeed())
	want := lsp.Config{
		Language: "go", Folders: []string{"/src", "/lib"},
		InitializationOptions: json.RawMessage(`{"a":[null],"b":1.50}`), Settings: json.RawMessage(`{"gopls":{"a":{},"z":true}}`),
		Limits: lsp.Limits{
			HeaderBytes: 1, MessageBytes: 2, ClientMessageBytes: 3, Clients: 4, OpenDocuments: 5, DocumentBytes: 6,
			InFlight: 7, QueueBytes: 8, RequestTimeout: 9 * time.Second, MemoryBytes: 10,
		},
		Hold: lsp.Hold{Timeout: 11 * time.Second, Requests: 12, Bytes: 13},
		Health: lsp.Health{PingAfter: 14 * time.Second, HangTimeout: 15 * time.Second, Canary: lsp.Canary{
			Method: "workspace/symbol", Params: json.RawMessage(`{"query":"main"}`), Period: 16 * time.Second}},
		StartupTimeout: 17 * time.Second, WhileIndexing: lsp.IndexingHold, Replay: []string{"my/read"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	s.Expect(start.Process.Dir).To(Equal("/src"))
	s.Expect(start.Probed).To(BeTrue())
	s.Expect(start.Blocked).To(BeNil())
	s.Expect(s.backend.kept).To(HaveKeyWithValue(gopls().UID, true))
}

func TestPrepare_LeavesDefaultsToMultiplexer(t *testing.T) {
	s := newFixture(t)
	var got lsp.Config
	s.Expect(json.Unmarshal(s.prepare(gopls()).Process.Config, &got)).To(Succeed())
	want := lsp.Config{Language: "go", Folders: []string{"/src", "/lib"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestPrepare_ZeroTimeoutDisablesHold(t *testing.T) {
	s := newFixture(t)
	var got lsp.Config
	start := s.prepare(gopls(func(server *v1alpha1.LanguageServer) { server.Spec.Hold.TimeoutSeconds = ptr.To[int32](0) }))
	s.Expect(json.Unmarshal(start.Process.Config, &got)).To(Succeed())
	s.Expect(got.WithDefaults().Hold.Timeout).To(BeNumerically("<", 0))
}

func TestPrepare_PrefersWorkingDirToFolder(t *testing.T) {
	s := newFixture(t)
	start := s.prepare(gopls(func(server *v1alpha1.LanguageServer) { server.Spec.Process.WorkingDir = "/elsewhere" }))
	s.Expect(start.Process.Dir).To(Equal("/elsewhere"))
}

func TestFingerprint_ChangesOnlyWithServerSettings(t *testing.T) {
	s := newFixture(t)
	before := s.prepare(gopls(withFullSpec)).Fingerprint
	same := s.prepare(gopls(withFullSpec, func(server *v1alpha1.LanguageServer) {
		server.Spec.Settings = raw("{\n  \"gopls\": {\"a\": {}, \"z\": true}}")
		server.Spec.IdleTimeoutSeconds = ptr.To[int32](1)
	})).Fingerprint
	s.Expect(same).To(Equal(before), "the order of keys, white space and idleTimeoutSeconds do not concern the server")
	for name, change := range map[string]func(*v1alpha1.LanguageServerSpec){
		"language": func(spec *v1alpha1.LanguageServerSpec) { spec.Language = "c" },
		"folders":  func(spec *v1alpha1.LanguageServerSpec) { spec.Workspace.Folders = []string{"/lib", "/src"} },
		"settings": func(spec *v1alpha1.LanguageServerSpec) { spec.Settings = raw(`{"gopls":{"z":false,"a":{}}}`) },
		"options":  func(spec *v1alpha1.LanguageServerSpec) { spec.InitializationOptions = nil },
		"limits":   func(spec *v1alpha1.LanguageServerSpec) { spec.Limits.MaxClients = ptr.To[int32](99) },
		"hold":     func(spec *v1alpha1.LanguageServerSpec) { spec.Hold.MaxRequests = ptr.To[int32](99) },
		"canary":   func(spec *v1alpha1.LanguageServerSpec) { spec.Health.Canary.Params = raw(`{"query":"x"}`) },
		"replay":   func(spec *v1alpha1.LanguageServerSpec) { spec.ReplayMethods = nil },
	} {
		t.Run(name, func(t *testing.T) {
			changed := s.prepare(gopls(withFullSpec, func(server *v1alpha1.LanguageServer) { change(&server.Spec) }))
			NewWithT(t).Expect(changed.Fingerprint).NotTo(Equal(before))
		})
	}
}

func TestPrepare_SetsInstanceAsOwner(t *testing.T) {
	instance := &v1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "agent", UID: "uid-agent"}}
	server := gopls(func(server *v1alpha1.LanguageServer) {
		server.Spec.InstanceRef = &v1alpha1.LocalReference{Name: "agent"}
	})

	s := newFixture(t, server.DeepCopy())
	blocked := s.prepare(server).Blocked
	s.Expect(blocked).NotTo(BeNil())
	s.Expect(blocked.Reason).To(Equal(v1alpha1.ReasonInstanceMissing))
	s.Expect(blocked.Message).To(ContainSubstring("Instance agent does not exist in namespace default"))
	s.Expect(blocked.Retry).To(BeNumerically(">", 0))

	s.Expect(s.store.Create(t.Context(), instance)).To(Succeed())
	s.Expect(s.store.Get(t.Context(), client.ObjectKeyFromObject(server), server)).To(Succeed())
	s.Expect(s.prepare(server).Blocked).To(BeNil())
	s.Expect(s.store.Get(t.Context(), client.ObjectKeyFromObject(server), server)).To(Succeed())
	s.Expect(server.OwnerReferences).To(HaveLen(1))
	s.Expect(server.OwnerReferences[0].UID).To(Equal(instance.UID))
	s.Expect(server.OwnerReferences[0].Controller).To(HaveValue(BeTrue()))

	version := server.ResourceVersion
	s.Expect(s.prepare(server).Blocked).To(BeNil())
	s.Expect(s.store.Get(t.Context(), client.ObjectKeyFromObject(server), server)).To(Succeed())
	s.Expect(server.ResourceVersion).To(Equal(version), "the owner is written only once")

	server.OwnerReferences[0].UID = "uid-of-an-earlier-one"
	s.Expect(s.prepare(server).Blocked.Message).To(ContainSubstring("Recreate this object."))
}
