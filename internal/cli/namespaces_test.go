// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/manager"
)

// limitedObjects are two namespaces with one Instance each, and a Secret in the namespace "watched". The manager serves only that namespace.
const limitedObjects = `
apiVersion: v1
kind: Namespace
metadata: {name: watched}
---
apiVersion: v1
kind: Namespace
metadata: {name: other}
---
apiVersion: v1
kind: Secret
metadata: {name: key, namespace: watched}
stringData: {token: secret}
---
apiVersion: berth.dev/v1alpha1
kind: Instance
metadata: {name: left-alone, namespace: other}
spec:
  process: {command: [sleep, infinity]}
  runtime: {type: Pod, pod: {image: local}}
---
apiVersion: berth.dev/v1alpha1
kind: Instance
metadata: {name: served, namespace: watched}
spec:
  process: {command: [sleep, infinity], env: [{name: TOKEN, valueFrom: {secretKeyRef: {name: key, key: token}}}]}
  runtime: {type: Pod, pod: {image: local}}
`

// The permissions that the chart grants with watchNamespaces are sufficient for the manager, also with the policies that limit its account.
func TestManager_NeedsOnlyNamespacedPermissions(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	api, kubeconfig := startClusterWithPods(t)
	limited := limitedKubeconfig(t, kubeconfig, createAccount(g, api, "limited"))
	applyAll(t, api, limitedObjects)
	for _, file := range []string{"manager_role.yaml", "environment_role.yaml", "cluster/pods_role.yaml", "../policy/pods.yaml", "../policy/managers.yaml"} {
		text, err := os.ReadFile(filepath.Join("..", "..", "config", "rbac", file))
		g.Expect(err).NotTo(HaveOccurred())
		manifests, err := parseManifests(file, text)
		g.Expect(err).NotTo(HaveOccurred())
		for _, m := range manifests {
			o := m.object
			if o.GetKind() == "ClusterRoleBinding" {
				continue
			}
			if o.GetKind() == "Role" {
				o.SetNamespace("default") // where this manager is installed
			}
			g.Expect(serverSideApply(ctx, api, o)).To(Succeed())
		}
	}
	applyAll(t, api, strings.Join([]string{
		limitedBinding("RoleBinding", "default", "Role", "berth-manager"),
		limitedBinding("RoleBinding", "default", "Role", "berth-manager-hosts"),
		limitedBinding("RoleBinding", "watched", "ClusterRole", "berth-manager"),
		limitedBinding("RoleBinding", "watched", "ClusterRole", "berth-manager-environment"),
		limitedBinding("RoleBinding", "watched", "ClusterRole", "berth-manager-pods"),
		limitedBinding("ClusterRoleBinding", "", "ClusterRole", "berth-manager-reviews"),
		limitedBinding("ClusterRoleBinding", "", "ClusterRole", "berth-manager-nodes"),
	}, "---\n"))

	m := startManager(t, limited, "--namespaces=watched", "--runtimes=Pod")
	pods := &corev1.PodList{}
	g.Eventually(func() (int, error) {
		err := api.List(ctx, pods)
		return len(pods.Items), err
	}, clusterTimeout).Should(Equal(1), m.err.String)
	g.Expect(pods.Items[0].Namespace).To(Equal("watched"))
	other := &v1alpha1.Instance{}
	g.Expect(api.Get(ctx, client.ObjectKey{Namespace: "other", Name: "left-alone"}, other)).To(Succeed())
	g.Expect(other.Finalizers).To(BeEmpty())
	g.Expect(other.Status.Conditions).To(BeEmpty())

	served := &v1alpha1.Instance{}
	served.Namespace, served.Name = "watched", "served"
	g.Expect(api.Delete(ctx, served)).To(Succeed())
	g.Eventually(func() bool { return apierrors.IsNotFound(api.Get(ctx, client.ObjectKeyFromObject(served), served)) }, clusterTimeout).
		Should(BeTrue(), m.err.String)
	g.Expect(m.err.String()).NotTo(ContainSubstring("forbidden"))
}

func TestManagerFlags_Validate(t *testing.T) {
	valid := managerFlags{logFormat: "json", manager: manager.Options{Concurrency: 8, PprofBindAddress: "127.0.0.1:6060"}}
	NewWithT(t).Expect(valid.validate()).To(Succeed())
	for want, change := range map[string]func(*managerFlags){
		`--log-format must be text or json, not "xml"`:    func(f *managerFlags) { f.logFormat = "xml" },
		"--concurrency must be between 1 and 1000, not 0": func(f *managerFlags) { f.manager.Concurrency = 0 },
		`--pprof-bind-address must be a loopback address`: func(f *managerFlags) { f.manager.PprofBindAddress = "0.0.0.0:6060" },
		`such as 127.0.0.1:6060, not ":6060"`:             func(f *managerFlags) { f.manager.PprofBindAddress = ":6060" },
		`--namespaces: "A" is not a valid namespace name`: func(f *managerFlags) { f.namespaces = []string{"A"} },
	} {
		invalid := valid
		change(&invalid)
		NewWithT(t).Expect(invalid.validate()).To(MatchError(ContainSubstring(want)))
	}
}

func TestNewLogger_WritesJSON(t *testing.T) {
	g := NewWithT(t)
	var out bytes.Buffer
	newLogger(&out, slog.LevelInfo, logJSON).Info("started", "name", "web")
	var line map[string]any
	g.Expect(json.Unmarshal(out.Bytes(), &line)).To(Succeed())
	g.Expect(line).To(And(HaveKeyWithValue("msg", "started"), HaveKeyWithValue("name", "web")))
}

func TestValidNamespaces_RejectsInvalidLists(t *testing.T) {
	g := NewWithT(t)
	g.Expect(validNamespaces(nil)).To(Succeed())
	g.Expect(validNamespaces([]string{"a", "b-1"})).To(Succeed())
	g.Expect(validNamespaces([]string{"a", "A"})).To(MatchError(ContainSubstring(`"A" is not a valid namespace name`)))
	g.Expect(validNamespaces([]string{"a", ""})).To(MatchError(ContainSubstring(`"" is not a valid namespace name`)))
	g.Expect(validNamespaces([]string{"a", "a"})).To(MatchError(ContainSubstring(`"a" is listed twice`)))
	g.Expect(validNamespaces(make([]string, 101))).To(MatchError(ContainSubstring("exceed the limit of 100")))
}

func limitedBinding(kind, namespace, roleKind, role string) string {
	return fmt.Sprintf(`
apiVersion: rbac.authorization.k8s.io/v1
kind: %s
metadata: {name: %s-%s, namespace: %q}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: %s, name: %s}
subjects: [{kind: ServiceAccount, name: limited, namespace: default}]
`, kind, strings.ToLower(roleKind), role, namespace, roleKind, role)
}

func applyAll(t *testing.T, api client.Client, text string) {
	t.Helper()
	g := NewWithT(t)
	g.Expect(applyEmbedded(t.Context(), api, "objects", []byte(text))).To(Succeed())
}

// limitedKubeconfig writes a copy of a kubeconfig in which a token replaces the credentials.
func limitedKubeconfig(t *testing.T, kubeconfig, token string) string {
	t.Helper()
	g := NewWithT(t)
	config, err := clientcmd.LoadFromFile(kubeconfig)
	g.Expect(err).NotTo(HaveOccurred())
	for name := range config.AuthInfos {
		config.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: token}
	}
	limited := filepath.Join(t.TempDir(), "limited")
	g.Expect(clientcmd.WriteToFile(*config, limited)).To(Succeed())
	return limited
}
