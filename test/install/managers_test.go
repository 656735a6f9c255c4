// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"fmt"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	gomegatypes "github.com/onsi/gomega/types"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// asAccount returns a client with the rights of a service account in the namespace of the installation.
func asAccount(t *testing.T, name string) client.WithWatch {
	t.Helper()
	return asUser(t, "system:serviceaccount:berth-system:"+name, "system:serviceaccounts", "system:serviceaccounts:berth-system", "system:authenticated")
}

func asUser(t *testing.T, name string, groups ...string) client.WithWatch {
	t.Helper()
	g := NewWithT(t)
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	g.Expect(err).NotTo(HaveOccurred())
	config.Impersonate = rest.ImpersonationConfig{UserName: name, Groups: groups}
	config.QPS, config.Burst = 100, 200
	made, err := client.NewWithWatch(config, client.Options{Scheme: k8s.Scheme()})
	g.Expect(err).NotTo(HaveOccurred())
	return made
}

// bind gives a user the rules in all namespaces.
func bind(t *testing.T, user string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "test-" + user}, Rules: rules}
	create(t, role)
	create(t, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "test-" + user}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	})
}

// create creates an object as the administrator, and deletes it after the test.
func create(t *testing.T, o client.Object) {
	t.Helper()
	g := NewWithT(t)
	g.Eventually(func() error { return k8s.Create(t.Context(), o) }, patience, poll).Should(Succeed())
	t.Cleanup(func() {
		ctx := context.Background()
		if finalizers := o.GetFinalizers(); len(finalizers) > 0 {
			g.Expect(client.IgnoreNotFound(k8s.Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte(`{"metadata": {"finalizers": null}}`))))).To(Succeed())
		}
		g.Expect(client.IgnoreNotFound(k8s.Delete(ctx, o))).To(Succeed())
	})
}

// freeParameters permit everything.
var freeParameters = map[string]string{"commands": "*", "images": "*", "directories": "*", "runtimes": "*", "docker": "*", "adoption": "*"}

func setFreeParameters(t *testing.T) {
	t.Helper()
	createNamespaces(t)
	setParameters(t, freeParameters, policyCase{"default", "Instance", `{process: {command: [sh], workingDir: /etc}, runtime: {type: Host}}`, "", ""})
}

// patchCase is a patch of an object, and who may send it.
type patchCase struct {
	name        string
	user        client.Client
	object      client.Object
	subresource string
	patch       string
	matches     gomegatypes.GomegaMatcher
}

func (c patchCase) expect(t *testing.T) {
	t.Helper()
	NewWithT(t).Eventually(func() error {
		patch := client.RawPatch(types.MergePatchType, []byte(c.patch))
		copied := c.object.DeepCopyObject().(client.Object) // a copy has the type of its original
		if c.subresource != "" {
			return c.user.SubResource(c.subresource).Patch(t.Context(), copied, patch, &client.SubResourcePatchOptions{PatchOptions: client.PatchOptions{DryRun: []string{metav1.DryRunAll}}})
		}
		return c.user.Patch(t.Context(), copied, patch, client.DryRunAll)
	}, patience, poll).Should(c.matches, c.name)
}

// TestPodPolicy_ReservesLabelsForManager checks that only the account of a manager can set, change or remove the labels and annotations by which Berth finds its
// Pods.
func TestPodPolicy_ReservesLabelsForManager(t *testing.T) {
	createNamespaces(t)
	bind(t, "mallory", rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods", "pods/status"}, Verbs: []string{"get", "create", "patch", "update"}})
	mallory, manager := asUser(t, "mallory", "system:authenticated"), asAccount(t, insideAccount)
	pod := func(name string, labels, annotations map[string]string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: labels, Annotations: annotations},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "local"}}},
		}
	}
	refused := beRefusedBy("pods", "changing a label or annotation of a Pod that begins with berth.dev/")
	forged := map[string]string{"berth.dev/uid": "b7a2", "berth.dev/incarnation": "1", "app.kubernetes.io/managed-by": "berth"}
	for _, c := range []struct {
		name                string
		user                client.Client
		labels, annotations map[string]string
		matches             gomegatypes.GomegaMatcher
	}{
		{"forged by an editor", mallory, forged, map[string]string{"berth.dev/name": "devservers/default/web"}, refused},
		{"only the label", mallory, map[string]string{"berth.dev/uid": "b7a2"}, nil, refused},
		{"only the annotation", mallory, nil, map[string]string{"berth.dev/name": "devservers/default/web"}, refused},
		{"another domain", mallory, map[string]string{"example.com/uid": "b7a2"}, map[string]string{"berth.development/name": "a"}, Succeed()},
		{"by the manager", manager, forged, map[string]string{"berth.dev/name": "devservers/default/web"}, Succeed()},
	} {
		NewWithT(t).Eventually(func() error {
			return c.user.Create(t.Context(), pod("forged", c.labels, c.annotations), client.DryRunAll)
		}, patience, poll).
			Should(c.matches, c.name)
	}

	owned := pod("owned", forged, map[string]string{"berth.dev/name": "devservers/default/web"})
	create(t, owned)
	plain := pod("plain", nil, nil)
	create(t, plain)
	for _, c := range []patchCase{
		{"add the label", mallory, plain, "", `{"metadata": {"labels": {"berth.dev/uid": "b7a2"}}}`, refused},
		{"add the label with the status", mallory, plain, "status", `{"metadata": {"labels": {"berth.dev/uid": "b7a2"}}}`, refused},
		{"add the annotation", mallory, plain, "", `{"metadata": {"annotations": {"berth.dev/origin": "{}"}}}`, refused},
		{"change the label", mallory, owned, "", `{"metadata": {"labels": {"berth.dev/uid": "other"}}}`, refused},
		{"remove the label", mallory, owned, "", `{"metadata": {"labels": {"berth.dev/uid": null}}}`, refused},
		{"remove all labels", mallory, owned, "", `{"metadata": {"labels": null}}`, refused},
		{"change the annotation", mallory, owned, "", `{"metadata": {"annotations": {"berth.dev/name": "devservers/default/other"}}}`, refused},
		{"change another label", mallory, owned, "", `{"metadata": {"labels": {"team": "a"}}}`, Succeed()},
		{"change the status", mallory, owned, "status", `{"status": {"message": "a"}}`, Succeed()},
		{"by the manager", manager, owned, "", `{"metadata": {"annotations": {"berth.dev/program-ended": ""}}}`, Succeed()},
	} {
		t.Run(c.name, c.expect)
	}
}

func newInstance(name, host string) *v1alpha1.Instance {
	o := &v1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	if host != "" {
		o.Labels = map[string]string{v1alpha1.LabelHost: host}
	}
	o.Spec.Process.Command = []string{"sh"}
	return o
}

func newRun(name, host string) *v1alpha1.StrategyRun {
	o := &v1alpha1.StrategyRun{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Finalizers: []string{v1alpha1.FinalizerProcess, v1alpha1.FinalizerCount}}}
	if host != "" {
		o.Labels = map[string]string{v1alpha1.LabelHost: host}
	}
	o.Spec.StrategyRef.Name, o.Spec.State = "lint", v1alpha1.RunActive
	return o
}

// TestManagerPolicy_ChangesNoSpec checks that the account of a manager can change metadata and status of objects, but no spec, although its role permits patch.
func TestManagerPolicy_ChangesNoSpec(t *testing.T) {
	setFreeParameters(t)
	manager := asAccount(t, insideAccount)
	bind(t, "erin", rbacv1.PolicyRule{APIGroups: []string{"berth.dev"}, Resources: []string{"instances", "strategyruns"}, Verbs: []string{"get", "create", "patch"}})
	editor := asUser(t, "erin", "system:authenticated")
	instance, run := newInstance("subject", ""), newRun("subject", "")
	create(t, instance)
	create(t, run)
	spec := beRefusedBy("managers", "changing the spec")
	for _, c := range []patchCase{
		{"command", manager, instance, "", `{"spec": {"process": {"command": ["/bin/evil"]}}}`, spec},
		{"state", manager, instance, "", `{"spec": {"state": "Stopped"}}`, spec},
		{"spec with metadata", manager, instance, "", `{"metadata": {"labels": {"a": "b"}}, "spec": {"restartToken": "x"}}`, spec},
		{"labels and finalizers", manager, instance, "", `{"metadata": {"labels": {"berth.dev/session": "a"}, "finalizers": ["berth.dev/process"]}}`, Succeed()},
		{"status", manager, instance, "status", `{"status": {"incarnation": 1}}`, Succeed()},
		{"command by an editor", editor, instance, "", `{"spec": {"process": {"command": ["/bin/good"]}}}`, Succeed()},
		{"command by an administrator", k8s, instance, "", `{"spec": {"process": {"command": ["/bin/good"]}}}`, Succeed()},
		{"cancel a run", manager, run, "", `{"spec": {"state": "Cancelled"}}`, Succeed()},
	} {
		t.Run(c.name, c.expect)
	}
}

// TestManagerPolicy_CreatesOnlyItsObjects checks that the account of a manager can create runs of plans and Instances of discoveries, and nothing that starts another
// program.
func TestManagerPolicy_CreatesOnlyItsObjects(t *testing.T) {
	setFreeParameters(t)
	manager := asAccount(t, insideAccount)
	discovered := func(change func(*v1alpha1.Instance)) *v1alpha1.Instance {
		o := newInstance("found", "")
		o.Labels = map[string]string{v1alpha1.LabelDiscoveredBy: "all"}
		o.Spec.Adoption, o.Spec.DeletionPolicy, o.Spec.RestartPolicy = v1alpha1.AdoptionRequired, v1alpha1.DeletionOrphan, v1alpha1.RestartNever
		o.Spec.Runtime = &v1alpha1.InstanceRuntime{Type: v1alpha1.RuntimeTmux, Tmux: &v1alpha1.TmuxRuntime{Session: "a"}}
		change(o)
		return o
	}
	planned := newRun("planned", "")
	planned.OwnerReferences = []metav1.OwnerReference{{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Plan", Name: "a", UID: "a", Controller: new(true)}}
	refused := beRefusedBy("managers", "creating this object")
	for _, c := range []struct {
		name    string
		object  client.Object
		matches gomegatypes.GomegaMatcher
	}{
		{"a discovered Instance", discovered(func(*v1alpha1.Instance) {}), Succeed()},
		{"an Instance that starts a program", newInstance("evil", ""), refused},
		{"an Instance that ends what it adopts", discovered(func(o *v1alpha1.Instance) { o.Spec.DeletionPolicy = v1alpha1.DeletionTerminate }), refused},
		{"an Instance of no discovery", discovered(func(o *v1alpha1.Instance) { o.Labels = nil }), refused},
		{"a run of a plan", planned, Succeed()},
		{"a run of no plan", newRun("evil", ""), refused},
	} {
		NewWithT(t).Eventually(func() error {
			return manager.Create(t.Context(), c.object.DeepCopyObject().(client.Object), client.DryRunAll) // a copy has the type of its original
		}, patience, poll).Should(c.matches, c.name)
	}
}

// hostAccount follows the procedure in docs/hosts.md for the account of one host, and returns a client with its rights.
func hostAccount(t *testing.T, host string) client.WithWatch {
	t.Helper()
	name := "machine-" + host
	for _, text := range []string{
		`{kind: ClusterRoleBinding, metadata: {name: NAME}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: berth-manager}, SUBJECTS}`,
		`{kind: RoleBinding, metadata: {name: NAME, namespace: berth-system}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: berth-manager}, SUBJECTS}`,
		`{kind: Role, metadata: {name: NAME-host, namespace: berth-system}, rules: [{apiGroups: [coordination.k8s.io], resources: [leases], resourceNames: [berth-host-HOST], verbs: [update]}]}`,
		`{kind: RoleBinding, metadata: {name: NAME-host, namespace: berth-system}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: NAME-host}, SUBJECTS}`,
	} {
		text = strings.NewReplacer("SUBJECTS", "subjects: [{kind: ServiceAccount, name: NAME, namespace: berth-system}]").Replace(text)
		create(t, parseOne(t, strings.NewReplacer("NAME", name, "HOST", host, "{kind", "{apiVersion: rbac.authorization.k8s.io/v1, kind").Replace(text)))
	}
	return asAccount(t, name)
}

// TestManagerPolicy_ServesOnlyItsHost checks that an account that may update the Lease of one host can write only the objects of that host, and of no host.
func TestManagerPolicy_ServesOnlyItsHost(t *testing.T) {
	setFreeParameters(t)
	one := hostAccount(t, "one")
	free, own, foreign, moved := newInstance("free", ""), newInstance("own", "one"), newInstance("foreign", "two"), newInstance("moved", "two")
	finished, active := newRun("finished", "two"), newRun("active", "two")
	for _, o := range []client.Object{free, own, foreign, moved, finished, active} {
		create(t, o)
	}
	g := NewWithT(t)
	status := func(o client.Object, patch string) {
		g.Expect(k8s.Status().Patch(t.Context(), o, client.RawPatch(types.MergePatchType, []byte(patch)))).To(Succeed())
	}
	status(moved, `{"status": {"hostName": "one"}}`)
	status(foreign, `{"status": {"hostName": "two", "incarnation": 2}}`)
	status(finished, `{"status": {"outcome": "Succeeded"}}`)
	refused := beRefusedBy("managers", "changing an object of another host")
	condition := func(reason string) string {
		return fmt.Sprintf(`{"status": {"conditions": [{"type": "Stalled", "status": "True", "reason": %q, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}`, reason)
	}
	for _, c := range []patchCase{
		{"take an object of no host", one, free, "", `{"metadata": {"labels": {"berth.dev/host": "one"}}}`, Succeed()},
		{"give an object to another host", one, free, "", `{"metadata": {"labels": {"berth.dev/host": "two"}}}`, refused},
		{"metadata of the own object", one, own, "", `{"metadata": {"finalizers": ["berth.dev/process"]}}`, Succeed()},
		{"status of the own object", one, own, "status", `{"status": {"hostName": "one", "incarnation": 1}}`, Succeed()},
		{"status with another host", one, own, "status", `{"status": {"hostName": "two"}}`, refused},
		{"take a foreign object", one, foreign, "", `{"metadata": {"labels": {"berth.dev/host": "one"}}}`, refused},
		{"metadata of a foreign object", one, foreign, "", `{"metadata": {"annotations": {"berth.dev/lost-host": "two"}}}`, refused},
		{"status of a foreign object", one, foreign, "status", `{"status": {"incarnation": 3}}`, refused},
		{"report that a host is unavailable", one, foreign, "status", condition("HostUnavailable"), Succeed()},
		{"another condition of a foreign object", one, foreign, "status", condition("StartFailed"), refused},
		{"unavailable and more", one, foreign, "status", strings.Replace(condition("HostUnavailable"), `{"status": {`, `{"status": {"hostName": "one", `, 1), refused},
		{"unavailable and less", one, foreign, "status", strings.Replace(condition("HostUnavailable"), `{"status": {`, `{"status": {"hostName": null, `, 1), refused},
		{"release an object that moves", one, moved, "status", `{"status": {"hostName": null}}`, Succeed()},
		{"release a finished run", one, finished, "", `{"metadata": {"finalizers": ["berth.dev/process"]}}`, Succeed()},
		{"release the process of a run", one, finished, "", `{"metadata": {"finalizers": null}}`, refused},
		{"release and label a run", one, finished, "", `{"metadata": {"finalizers": ["berth.dev/process"], "labels": {"a": "b"}}}`, refused},
		{"release an active run", one, active, "", `{"metadata": {"finalizers": ["berth.dev/process"]}}`, refused},
		{"cancel a foreign run", one, active, "", `{"spec": {"state": "Cancelled"}}`, refused},
		{"foreign object by the account of all hosts", asAccount(t, insideAccount), foreign, "status", `{"status": {"incarnation": 3}}`, Succeed()},
	} {
		t.Run(c.name, c.expect)
	}
	remove := func(o client.Object) func() error {
		return func() error { return one.Delete(t.Context(), o.DeepCopyObject().(client.Object), client.DryRunAll) } // a copy has the type of its original
	}
	g.Eventually(remove(foreign), patience, poll).Should(refused)
	g.Eventually(remove(active), patience, poll).Should(refused)
	g.Eventually(remove(own), patience, poll).Should(Succeed())
	g.Eventually(remove(finished), patience, poll).Should(Succeed(), "the manager that counts a strategy deletes finished runs of all hosts")
}
