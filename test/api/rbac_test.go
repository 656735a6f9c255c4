// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package api

import (
	"path/filepath"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// access is a verb on a resource or subresource, and the roles that permit it.
type access struct {
	verb, resource string
	roles          []string
}

// accesses are the permissions that the roles of config/rbac must grant. The names "view", "edit" and "admin" stand for the aggregated cluster roles of
// Kubernetes. The test does not bind these cluster roles, but the roles of Berth that are aggregated to them.
var accesses = []access{
	{"get", "devservers", []string{"view", "edit", "admin", "manager"}},
	{"list", "instances", []string{"view", "edit", "admin", "manager"}},
	{"get", "devservers/status", []string{"view", "edit", "admin"}},
	{"get", "languageservers", []string{"view", "edit", "admin", "manager"}},
	{"create", "languageservers", []string{"edit", "admin"}},
	{"patch", "languageservers/status", []string{"manager"}},
	{"update", "languageservers/finalizers", []string{"manager"}},
	{"get", "languageservers/log", []string{"view", "edit", "admin"}},
	{"get", "devservers/log", []string{"view", "edit", "admin"}},
	{"get", "instances/log", []string{"view", "edit", "admin"}},
	{"create", "instances/attach", []string{"edit", "admin"}},
	{"create", "devservers", []string{"edit", "admin"}},
	{"list", "instancediscoveries", []string{"view", "edit", "admin", "manager"}},
	{"create", "instancediscoveries", []string{"edit", "admin"}},
	{"patch", "instancediscoveries/status", []string{"manager"}},
	{"create", "instances", []string{"edit", "admin", "manager"}},
	{"patch", "instances", []string{"edit", "admin", "manager"}},
	{"delete", "devservers", []string{"edit", "admin", "manager"}},
	{"patch", "devservers/status", []string{"manager"}},
	{"update", "instances/status", nil},
	{"update", "instances/finalizers", []string{"manager"}},
}

func TestRoles_GrantOnlyExpectedAccess(t *testing.T) {
	g := NewWithT(t)
	for _, file := range []string{"manager_role.yaml", "user_roles.yaml"} {
		for _, o := range documents(t, filepath.Join("..", "..", "config", "rbac", file)) {
			if o.GetKind() == "ClusterRole" {
				g.Expect(k8s.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(o), client.FieldOwner("roles"))).To(Succeed())
			}
		}
	}
	bindRole(t, "manager", "berth-manager")
	// Find the roles by their aggregation label and bind each of them. kube-controller-manager would aggregate them, but envtest does not run it.
	for _, role := range []string{"view", "edit", "admin"} {
		var parts rbacv1.ClusterRoleList
		g.Expect(k8s.List(t.Context(), &parts, client.MatchingLabels{"rbac.authorization.k8s.io/aggregate-to-" + role: "true"})).To(Succeed())
		for _, part := range parts.Items {
			if strings.HasPrefix(part.Name, "berth-") {
				bindRole(t, role, part.Name)
			}
		}
	}

	for _, a := range accesses {
		for _, user := range []string{"view", "edit", "admin", "manager"} {
			want := false
			for _, who := range a.roles {
				want = want || who == user
			}
			g.Eventually(func() (bool, error) { return isAllowed(t, user, a.verb, a.resource) }).WithTimeout(waitForAuthorizer).
				Should(Equal(want), "%s: %s %s", user, a.verb, a.resource)
		}
	}
}

func bindRole(t *testing.T, user, role string) {
	t.Helper()
	NewWithT(t).Expect(k8s.Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "test-" + user + "-" + role},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	})).To(Succeed())
}

func isAllowed(t *testing.T, user, verb, resource string) (bool, error) {
	t.Helper()
	name, sub, _ := strings.Cut(resource, "/")
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: "default", Verb: verb, Group: "berth.dev", Resource: name, Subresource: sub,
		},
	}}
	err := k8s.Create(t.Context(), review)
	return review.Status.Allowed, err
}
