// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// right is a permission that the account of a manager may have.
type right struct{ verb, group, resource, namespace, name string }

// rights are the expected permissions of a manager inside the cluster and of a manager outside it. The two managers differ only in the permissions for
// Pods and for values from Secrets and ConfigMaps.
var rights = []struct {
	right
	inside, outside bool
}{
	{right{"list", "berth.dev", "instances", "", ""}, true, true},
	{right{"patch", "berth.dev", "devservers/status", "default", ""}, true, true},
	{right{"create", "berth.dev", "strategyruns", "default", ""}, true, true},
	{right{"create", "events.k8s.io", "events", "default", ""}, true, true},
	{right{"create", "authorization.k8s.io", "subjectaccessreviews", "", ""}, true, true},
	{right{"update", "coordination.k8s.io", "leases", "berth-system", "berth.dev"}, true, true},
	{right{"create", "coordination.k8s.io", "leases", "berth-system", ""}, true, true},
	{right{"get", "", "configmaps", "berth-system", "berth-policy"}, true, true},
	{right{"delete", "berth.dev", "instances", "default", "any"}, true, true},

	{right{"create", "", "pods", "default", ""}, true, false},
	{right{"delete", "", "pods", "default", "any"}, true, false},
	{right{"create", "", "pods/attach", "default", "any"}, true, false},
	{right{"get", "", "secrets", "default", "any"}, true, false},
	{right{"get", "", "configmaps", "default", "any"}, true, false},
	{right{"create", "", "secrets", "default", ""}, true, false},
	{right{"create", "", "services", "default", ""}, true, false},
	{right{"get", "", "nodes", "", "any"}, true, false},

	{right{"list", "", "secrets", "", ""}, false, false},
	{right{"list", "", "secrets", "default", ""}, false, false},
	{right{"create", "", "pods/exec", "default", "any"}, false, false},
	{right{"create", "", "namespaces", "", ""}, false, false},
	{right{"patch", "", "namespaces", "", "default"}, false, false},
	{right{"create", "rbac.authorization.k8s.io", "clusterrolebindings", "", ""}, false, false},
	{right{"escalate", "rbac.authorization.k8s.io", "clusterroles", "", ""}, false, false},
	{right{"patch", "", "configmaps", "kube-system", "any"}, false, false},
	{right{"update", "", "configmaps", "berth-system", "berth-policy"}, false, false},
	{right{"patch", "", "configmaps", "berth-system", "berth-policy"}, false, false},
	{right{"delete", "", "configmaps", "berth-system", "berth-policy"}, false, false},
	{right{"update", "", "configmaps", "berth-system", "any"}, false, false},
	{right{"create", "", "configmaps", "berth-system", ""}, false, false},
	{right{"delete", "coordination.k8s.io", "leases", "berth-system", "any"}, false, false},
	{right{"update", "coordination.k8s.io", "leases", "kube-system", "any"}, false, false},
	{right{"patch", "berth.dev", "actions", "default", "any"}, false, false},
	{right{"delete", "berth.dev", "actions", "default", "any"}, false, false},
	{right{"patch", "berth.dev", "strategies", "default", "any"}, false, false},
	{right{"delete", "berth.dev", "strategies", "default", "any"}, false, false},
	{right{"delete", "berth.dev", "instancediscoveries", "default", "any"}, false, false},
	{right{"update", "berth.dev", "devservers", "default", "any"}, false, false},
	{right{"update", "berth.dev", "devservers/status", "default", "any"}, false, false},
	{right{"create", "berth.dev", "devservers", "default", ""}, false, false},
}

// insideAccount is the service account of config/default, which the suite has installed. outsideAccount gets the roles of config/outside.
const (
	insideAccount  = "berth-manager"
	outsideAccount = "outside-berth-manager"
)

func TestManagerRoles_InsideAndOutsideCluster(t *testing.T) {
	installOutsideRoles(t)
	for _, r := range rights {
		expectRight(t, insideAccount, r.right, r.inside)
		expectRight(t, outsideAccount, r.right, r.outside)
	}
}

// TestManagerRoles_EnvironmentOfOneNamespace checks the procedure in docs/install.md that permits a manager to read the Secrets of one namespace by name.
func TestManagerRoles_EnvironmentOfOneNamespace(t *testing.T) {
	installOutsideRoles(t)
	binding := parseOne(t, `
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: berth-manager-environment, namespace: default}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: berth-manager-environment}
subjects: [{kind: ServiceAccount, name: outside-berth-manager, namespace: berth-system}]
`)
	NewWithT(t).Expect(apply(t.Context(), binding)).To(Succeed())
	t.Cleanup(func() { NewWithT(t).Expect(k8s.Delete(context.Background(), binding)).To(Succeed()) })
	expectRight(t, outsideAccount, right{"get", "", "secrets", "default", "any"}, true)
	expectRight(t, outsideAccount, right{"list", "", "secrets", "default", ""}, false)
	expectRight(t, outsideAccount, right{"get", "", "secrets", "kube-system", "any"}, false)
}

// installOutsideRoles installs the roles of config/outside in addition to the roles of config/default. It gives them other names and binds them to
// outsideAccount.
func installOutsideRoles(t *testing.T) {
	t.Helper()
	g := NewWithT(t)
	objects, err := render(t.Context(), filepath.Join("config", "outside"))
	g.Expect(err).NotTo(HaveOccurred())
	bindings := 0
	for _, o := range objects {
		subjects, _, err := unstructured.NestedSlice(o.Object, "subjects")
		g.Expect(err).NotTo(HaveOccurred())
		for _, subject := range subjects {
			subject := subject.(map[string]any)
			if subject["kind"] == "ServiceAccount" {
				g.Expect(subject["name"]).To(Equal(insideAccount))
				subject["name"] = outsideAccount
				bindings++
			}
		}
		if len(subjects) == 0 && !strings.HasSuffix(o.GetKind(), "Role") {
			continue
		}
		o.SetName("outside-" + o.GetName())
		o.SetLabels(nil) // remove the aggregation labels, so that the copies are not aggregated, too
		if subjects != nil {
			g.Expect(unstructured.SetNestedSlice(o.Object, subjects, "subjects")).To(Succeed())
			role, _, err := unstructured.NestedString(o.Object, "roleRef", "name")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(unstructured.SetNestedField(o.Object, "outside-"+role, "roleRef", "name")).To(Succeed())
		}
		g.Expect(apply(t.Context(), o)).To(Succeed(), "%s %s", o.GetKind(), o.GetName())
		t.Cleanup(func() { g.Expect(client.IgnoreNotFound(k8s.Delete(context.Background(), o))).To(Succeed()) })
	}
	g.Expect(bindings).To(Equal(4), "berth-manager, berth-manager-reviews, and the Roles berth-manager and berth-manager-hosts in the manager's namespace")
}

func expectRight(t *testing.T, account string, r right, want bool) {
	t.Helper()
	g := NewWithT(t)
	resource, sub, _ := strings.Cut(r.resource, "/")
	g.Eventually(func() (bool, error) {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User:   "system:serviceaccount:berth-system:" + account,
			Groups: []string{"system:serviceaccounts", "system:authenticated"},
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: r.verb, Group: r.group, Resource: resource, Subresource: sub, Namespace: r.namespace, Name: r.name,
			},
		}}
		err := k8s.Create(t.Context(), review)
		return review.Status.Allowed, err
	}, patience, poll).Should(Equal(want), "%s: %v", account, r)
}

func parseOne(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	objects, err := parse([]byte(text))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	NewWithT(t).Expect(objects).To(HaveLen(1))
	return objects[0]
}
