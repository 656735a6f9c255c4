// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
)

const managerSelector = "app.kubernetes.io/name=berth,app.kubernetes.io/component=manager"

// managerPods returns the Pods of the managers.
func managerPods(ctx context.Context) []corev1.Pod {
	GinkgoHelper()
	pods, err := clientset.CoreV1().Pods(managerNamespace).List(ctx, metav1.ListOptions{LabelSelector: managerSelector})
	Expect(err).NotTo(HaveOccurred())
	return pods.Items
}

func isPodReady(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue && pod.DeletionTimestamp == nil
		}
	}
	return false
}

// waitForRollout waits until the Pods of the managers match the Deployment and no other Pods of managers exist.
func waitForRollout(ctx context.Context) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega, ctx context.Context) {
		deployment, err := clientset.AppsV1().Deployments(managerNamespace).Get(ctx, "berth-manager", metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(deployment.Status.ObservedGeneration).To(Equal(deployment.Generation))
		want := *deployment.Spec.Replicas
		g.Expect(deployment.Status).To(And(
			HaveField("UpdatedReplicas", want), HaveField("ReadyReplicas", want), HaveField("Replicas", want)), "%+v", deployment.Status)
		pods, err := clientset.CoreV1().Pods(managerNamespace).List(ctx, metav1.ListOptions{LabelSelector: managerSelector})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(pods.Items).To(HaveLen(int(want)))
		for _, pod := range pods.Items {
			g.Expect(isPodReady(&pod)).To(BeTrue(), pod.Name)
		}
	}).Should(Succeed())
}

// waitForLeader waits until one of the Pods has renewed the lease after this call, and returns that Pod.
func waitForLeader(ctx context.Context) *corev1.Pod {
	GinkgoHelper()
	var found *corev1.Pod
	before := leaseRenewTime(ctx)
	Eventually(ctx, func(g Gomega, ctx context.Context) {
		lease, err := clientset.CoordinationV1().Leases(managerNamespace).Get(ctx, "berth.dev", metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(lease.Spec.HolderIdentity).NotTo(BeNil())
		g.Expect(lease.Spec.RenewTime.After(before)).To(BeTrue(), "%s has not renewed the lease", *lease.Spec.HolderIdentity)
		name, _, _ := strings.Cut(*lease.Spec.HolderIdentity, "_")
		found, err = clientset.CoreV1().Pods(managerNamespace).Get(ctx, name, metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred(), "the Pod that holds the lease does not exist")
	}).Should(Succeed())
	return found
}

// leaseRenewTime returns the time of the last renewal of the lease, according to the clock of its holder. Without a lease it returns the zero time.
func leaseRenewTime(ctx context.Context) time.Time {
	lease, err := clientset.CoordinationV1().Leases(managerNamespace).Get(ctx, "berth.dev", metav1.GetOptions{})
	if err != nil || lease.Spec.RenewTime == nil {
		return time.Time{}
	}
	return lease.Spec.RenewTime.Time
}

// createToken creates a service account in a namespace, binds the account to a cluster role unless role is empty, and returns a token of the account.
func createToken(ctx context.Context, namespace, name, role string) string {
	GinkgoHelper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	Expect(k8s.Create(ctx, account)).To(Succeed())
	DeferCleanup(func(ctx context.Context) { Expect(client.IgnoreNotFound(k8s.Delete(ctx, account))).To(Succeed()) })
	if role != "" {
		binding := &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "test-" + name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}},
		}
		Expect(k8s.Create(ctx, binding)).To(Succeed())
		DeferCleanup(func(ctx context.Context) { Expect(client.IgnoreNotFound(k8s.Delete(ctx, binding))).To(Succeed()) })
	}
	token, err := clientset.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	return token.Status.Token
}

// createMember creates a service account that has a cluster role in a namespace, and returns its user name.
func createMember(ctx context.Context, namespace, role string) string {
	GinkgoHelper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: role}}
	Expect(k8s.Create(ctx, account)).To(Succeed())
	Expect(k8s.Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: role},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: role}},
	})).To(Succeed())
	return "system:serviceaccount:" + namespace + ":" + role
}

// isAllowed reports whether a user is allowed to perform an action on a resource of Berth in a namespace, such as "create devservers".
func isAllowed(ctx context.Context, who, namespace, what string) (bool, error) {
	verb, resource, _ := strings.Cut(what, " ")
	resource, subresource, _ := strings.Cut(resource, "/")
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: who, ResourceAttributes: &authorizationv1.ResourceAttributes{
		Namespace: namespace, Verb: verb, Group: v1alpha1.GroupVersion.Group, Resource: resource, Subresource: subresource}}}
	answer, err := clientset.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	return answer.Status.Allowed, nil
}

// scrape requests metrics from an address and returns the status code and the body. It sends the token unless the token is empty.
func scrape(ctx context.Context, address, token string) (int, string, error) {
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // self-signed certificate
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+net.JoinHostPort(address, "8443")+"/metrics", nil)
	if err != nil {
		return 0, "", err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := (&http.Client{Transport: transport, Timeout: 10 * time.Second}).Do(request)
	if err != nil {
		return 0, "", fmt.Errorf("request metrics: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(response.Body, 8<<20))
	return response.StatusCode, string(text), err
}

// metricsAddress returns the address of the metrics Service.
func metricsAddress(ctx context.Context) string {
	GinkgoHelper()
	found, err := clientset.CoreV1().Services(managerNamespace).Get(ctx, "berth-metrics", metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())
	return found.Spec.ClusterIP
}
