// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/manager"
	"github.com/berth-dev/berth/test/need"
	"github.com/berth-dev/berth/test/testenv"
)

// clusterTimeout is long enough for a manager and an API server on a busy machine.
const clusterTimeout = 3 * time.Minute

// A manager as in a cluster: it starts without a runtime, stalls objects with a reason, removes their finalizers, and serves metrics only to permitted users.
func TestManager_WithoutRuntimeStallsObjectsAndProtectsMetrics(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	api, kubeconfig := startCluster(t)
	m := startManager(t, kubeconfig)

	refused := &v1alpha1.DevServer{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "refused"}}
	refused.Spec.Process.Command = []string{"serve"}
	refused.Spec.Process.Env = []v1alpha1.EnvVar{{Name: "TOKEN", ValueFrom: &v1alpha1.EnvVarSource{
		SecretKeyRef: &v1alpha1.KeyRef{Name: "not-there", Key: "token"},
	}}}
	g.Expect(api.Create(ctx, refused)).To(Succeed())
	g.Eventually(func(g Gomega) {
		g.Expect(api.Get(ctx, client.ObjectKeyFromObject(refused), refused)).To(Succeed())
		stalled := meta.FindStatusCondition(refused.Status.Conditions, v1alpha1.ConditionStalled)
		g.Expect(stalled).NotTo(BeNil())
		g.Expect(stalled.Status).To(Equal(metav1.ConditionTrue))
		g.Expect(stalled.Reason).To(Equal(v1alpha1.ReasonRuntimeUnavailable))
		g.Expect(stalled.Message).To(ContainSubstring("--runtimes"))
	}, clusterTimeout).Should(Succeed(), m.err.String)
	g.Expect(refused.Status.Incarnation).To(BeZero())
	g.Expect(refused.Status.Port).To(BeZero(), "an object that cannot start claims no port")
	g.Expect(api.Delete(ctx, refused)).To(Succeed())
	g.Eventually(func() bool {
		return apierrors.IsNotFound(api.Get(ctx, client.ObjectKeyFromObject(refused), refused))
	}, clusterTimeout).Should(BeTrue(), "an object that never ran can be deleted")

	g.Expect(m.scrape(ctx, "")).To(HavePrefix("401 metrics need a bearer token"))
	g.Expect(m.scrape(ctx, "nonsense")).To(HavePrefix("401 the API server rejects"))
	token := createAccount(g, api, "scraper")
	g.Expect(m.scrape(ctx, token)).To(HavePrefix(`403 user "system:serviceaccount:default:scraper" may not get /metrics`))
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "scrape"},
		Rules: []rbacv1.PolicyRule{{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}}}
	g.Expect(api.Create(ctx, role)).To(Succeed())
	g.Expect(api.Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "scrape"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "scrape"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: "scraper"}}})).To(Succeed())
	g.Eventually(func() string { return m.scrape(ctx, token) }, clusterTimeout).Should(And(HavePrefix("200 "),
		ContainSubstring("controller_runtime_reconcile_total"), ContainSubstring(`leader_election_master_status{name="berth.dev"} 1`)))
}

func TestOpenRuntimes_RejectsUnknownName(t *testing.T) {
	g := NewWithT(t)
	_, err := (&app{}).openRuntimes([]string{"Moon"}, nil, runtimeOptions{})
	g.Expect(err).To(MatchError(ContainSubstring(`--runtimes: unknown runtime "Moon"; use Host, Pod or both`)))
}

// startCluster starts an API server with the CRDs of Berth and returns a kubeconfig of its administrator.
func startCluster(t *testing.T) (api client.Client, kubeconfig string) {
	t.Helper()
	g := NewWithT(t)
	environment := testenv.New(filepath.Join("..", ".."))
	config, err := environment.Start()
	g.Expect(err).NotTo(HaveOccurred(), "start an API server")
	t.Cleanup(func() { g.Expect(environment.Stop()).To(Succeed()) })
	return clusterAccess(t, config, environment.Kubeconfig())
}

// startClusterWithPods is like startCluster, with an API server that also serves Pods. It skips the test if there is none.
func startClusterWithPods(t *testing.T) (api client.Client, kubeconfig string) {
	t.Helper()
	g := NewWithT(t)
	root := filepath.Join("..", "..")
	need.Pods(t, root)
	environment := testenv.WithPods(root)
	config, err := environment.Start()
	g.Expect(err).NotTo(HaveOccurred(), "start a control plane")
	t.Cleanup(func() { g.Expect(environment.Stop()).To(Succeed()) })
	return clusterAccess(t, config, environment.KubeConfig)
}

func clusterAccess(t *testing.T, config *rest.Config, text []byte) (api client.Client, kubeconfig string) {
	t.Helper()
	g := NewWithT(t)
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	g.Expect(os.WriteFile(kubeconfig, text, 0o600)).To(Succeed())
	api, err := client.New(config, client.Options{Scheme: manager.Scheme()})
	g.Expect(err).NotTo(HaveOccurred())
	return api, kubeconfig
}

// clusterManager is a running berth manager that serves metrics.
type clusterManager struct {
	*fixture
	metrics string
	http    *http.Client
}

// startManager runs berth manager with leader election and secure metrics, as config/manager does, but without a runtime. If another program takes the chosen
// free port first, it tries another port.
func startManager(t *testing.T, kubeconfig string, more ...string) *clusterManager {
	t.Helper()
	for range 5 {
		m := &clusterManager{fixture: newFixture(), metrics: freeAddress(t)}
		// The manager generates its certificate at every start, and only tokens of this test are sent to it.
		transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // see above
		m.http = &http.Client{Transport: transport, Timeout: timeout}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan int, 1)
		go func() {
			ended <- m.run(ctx, append([]string{"manager", "--kubeconfig", kubeconfig, "--runtimes=", "--leader-elect", "--leader-election-namespace=default",
				"--endpoint-bind-address=0", "--metrics-bind-address=" + m.metrics, "--metrics-secure"}, more...)...)
		}()
		var code *int
		NewWithT(t).Eventually(func() bool {
			select {
			case early := <-ended:
				code = &early
			default:
			}
			return code != nil || m.scrape(ctx, "") != ""
		}, clusterTimeout).Should(BeTrue(), m.err.String)
		if code != nil {
			cancel()
			t.Logf("berth manager exited with %d: %s", *code, m.err)
			continue
		}
		t.Cleanup(func() {
			transport.CloseIdleConnections()
			cancel()
			NewWithT(t).Eventually(ended, clusterTimeout).Should(Receive(BeElementOf(0, 130)), m.err.String)
		})
		return m
	}
	t.Fatal("berth manager did not start")
	return nil
}

// scrape returns the status code and the body of the response, or "" if there is no response.
func (m *clusterManager) scrape(ctx context.Context, token string) string {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+m.metrics+"/metrics", nil)
	if err != nil {
		return err.Error()
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := m.http.Do(request)
	if err != nil {
		return ""
	}
	defer func() { _ = response.Body.Close() }()
	text, _ := io.ReadAll(response.Body)
	return fmt.Sprintf("%d %s", response.StatusCode, text)
}

// createAccount creates a service account and returns a token for it. The API server looks the account up in a cache, so it may reject the token at first.
func createAccount(g Gomega, api client.Client, name string) string {
	made := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	g.Expect(api.Create(context.Background(), made)).To(Succeed())
	token := &authenticationv1.TokenRequest{}
	g.Expect(api.SubResource("token").Create(context.Background(), made, token)).To(Succeed())
	g.Eventually(func(g Gomega) {
		review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token.Status.Token}}
		g.Expect(api.Create(context.Background(), review)).To(Succeed())
		g.Expect(review.Status.Authenticated).To(BeTrue(), review.Status.Error)
	}, clusterTimeout).Should(Succeed())
	return token.Status.Token
}

func freeAddress(t *testing.T) string {
	t.Helper()
	port, err := testenv.FreePort()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return fmt.Sprintf("127.0.0.1:%d", port)
}
