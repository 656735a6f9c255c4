// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/manager"
)

func TestRun_ExitCodesDistinguishFailures(t *testing.T) {
	for _, test := range []struct {
		args []string
		code int
		said string
	}{
		{[]string{"status", "devserver/web"}, 0, ""},
		{[]string{"stat"}, 2, `unknown command "stat"`},
		{[]string{"plan", "aprove", "x"}, 2, `unknown command "aprove" for "berth plan"`},
		{[]string{"restart", "--never"}, 2, "unknown flag"},
		{[]string{"apply"}, 2, "-f is required"},
		{[]string{"status", "devserver/none"}, 3, "does not exist"},
		{[]string{"restart", "devserver/none"}, 3, "does not exist"},
		{[]string{"delete", "devserver/none"}, 3, "does not exist"},
		{[]string{"plan", "status", "none"}, 3, "does not exist"},
		{[]string{"restart", "devserver/web", "--wait", "--timeout", "1ms"}, 4, "timeout: devserver/web is not ready after 1ms"},
		{[]string{"stop", "devserver/web", "--wait", "--timeout", "1ms"}, 4, "timeout: devserver/web is not stopped after 1ms"},
		{[]string{"apply", "-f", "/nonexistent"}, 1, "no such file"},
		{[]string{"restart", "devserver", "web"}, 0, ""},
		{[]string{"stop", "devservers", "web", "none"}, 3, "devserver/none does not exist"},
		{[]string{"stop", "devserver", "instance/shell"}, 1, `"instance/shell" follows the kind "devserver"`},
	} {
		g := NewWithT(t)
		f := newFixture(web())
		g.Expect(f.run(t.Context(), test.args...)).To(Equal(test.code), "%v\n%s", test.args, f.err)
		g.Expect(f.err.String()).To(ContainSubstring(test.said))
	}
}

func TestStop_WaitsUntilTheProcessIsGone(t *testing.T) {
	g := NewWithT(t)
	f := newFixture(web(func(server *v1alpha1.DevServer) { server.Status.Process = nil }))
	g.Expect(f.run(t.Context(), "stop", "devserver/web", "--wait")).To(Equal(0), f.err.String())
	f = newFixture(web(func(server *v1alpha1.DevServer) { server.Spec.State = v1alpha1.StateRunning }))
	g.Expect(f.run(t.Context(), "start", "devserver/web", "--wait")).To(Equal(0), f.err.String())
	g.Expect(f.out.String()).To(ContainSubstring("already has the state Running"))
	f = newFixture(web(func(server *v1alpha1.DevServer) {
		server.Spec.State, server.Status.Conditions = v1alpha1.StateRunning, nil
	}))
	g.Expect(f.run(t.Context(), "start", "devserver/web", "--wait", "--timeout", "1ms")).To(Equal(4), "it is running but not ready")
}

func TestDelete_DeletesObjects(t *testing.T) {
	g := NewWithT(t)
	f := newFixture(web())
	g.Expect(f.run(t.Context(), "delete", "devserver/web", "--wait")).To(Equal(0), f.err.String())
	g.Expect(f.out.String()).To(Equal("devserver/web deleted\n"))
	err := f.api.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "web"}, &v1alpha1.DevServer{})
	g.Expect(apierrors.IsNotFound(err)).To(BeTrue())

	kept := web(func(server *v1alpha1.DevServer) { server.Finalizers = []string{v1alpha1.FinalizerProcess} })
	f = newFixture(kept)
	g.Expect(f.run(t.Context(), "delete", "devserver/web", "--wait", "--timeout", "1ms")).To(Equal(4))
	g.Expect(f.err.String()).To(ContainSubstring("devserver/web is not deleted after 1ms"))
}

func TestApply_UsesTheNamespaceOfTheCommand(t *testing.T) {
	g := NewWithT(t)
	f := newFixture()
	kinds := meta.NewDefaultRESTMapper(nil)
	kinds.Add(v1alpha1.GroupVersion.WithKind("DevServer"), meta.RESTScopeNamespace)
	f.api = fake.NewClientBuilder().WithScheme(manager.Scheme()).WithRESTMapper(kinds).Build()
	file := filepath.Join(t.TempDir(), "web.yaml")
	text := "apiVersion: berth.dev/v1alpha1\nkind: DevServer\nmetadata: {name: web}\nspec: {process: {command: [x]}}\n"
	g.Expect(os.WriteFile(file, []byte(text), 0o600)).To(Succeed())
	g.Expect(f.run(t.Context(), "apply", "-f", file, "-n", "other")).To(Equal(0), f.err.String())
	g.Expect(f.out.String()).To(Equal("applied devserver/web\n"))
	g.Expect(f.api.Get(t.Context(), client.ObjectKey{Namespace: "other", Name: "web"}, &v1alpha1.DevServer{})).To(Succeed())
}
