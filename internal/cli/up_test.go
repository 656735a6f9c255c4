// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/endpoint"
	"github.com/berth-dev/berth/internal/manager"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/fake"
)

// persistent returns a function that opens a runtime whose processes outlive the program that opened it, as those of the host runtime do.
func persistent(opened runtime.Runtime) func(runtimeOptions) (*backends, error) {
	return func(runtimeOptions) (*backends, error) {
		return &backends{registry: runtime.NewRegistry(opened, logr.Discard())}, nil
	}
}

func TestEndAll_StopsProcessesAndKeepsAdoptedSessions(t *testing.T) {
	g := NewWithT(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	fakeRuntime := fake.New(ctx, clock.RealClock{})
	fakeRuntime.Program("stubborn", fake.Program{IgnoreStop: true})
	fakeRuntime.Program("web", fake.Program{DeferStops: 2})
	zero := int32(0)
	stubborn := shell()
	stubborn.Status.Incarnation = 1
	stubborn.Spec.Process.Stop.GracePeriodSeconds = &zero
	f := newFixture(web(), stubborn)
	for _, p := range []runtime.Process{
		{UID: "uid-web", Incarnation: 3, Name: "web", Command: []string{"web"}, StopSignal: "SIGTERM"},
		{UID: "uid-shell", Incarnation: 1, Name: "shell", Command: []string{"stubborn"}, StopSignal: "SIGTERM"},
		{UID: "uid-gone", Incarnation: 1, Name: "gone", Command: []string{"x"}, StopSignal: "SIGTERM"},
	} {
		g.Expect(fakeRuntime.Start(ctx, p)).To(Succeed())
	}
	sessions := fake.WithSessions(fakeRuntime)
	sessions.Found("work")
	g.Expect(sessions.Start(ctx, runtime.Process{UID: "uid-found", Incarnation: 1, Command: []string{"x"}, Config: []byte(`{"session":"work"}`)})).To(Succeed())
	g.Expect((&processStopper{f.api, runtime.NewRegistry(sessions, logr.Discard()), clock.RealClock{}, f.app.say}).endAll(ctx)).To(Succeed())
	g.Expect(fakeRuntime.Live("uid-found")).NotTo(BeEmpty(), "an adopted session outlives Berth")
	for _, uid := range []types.UID{"uid-web", "uid-shell", "uid-gone"} {
		g.Expect(fakeRuntime.Live(uid)).To(BeEmpty())
		g.Expect(sessions.Tidied(uid)).To(BeTrue(), "no ended session is kept for inspection")
	}
	g.Expect(sessions.Tidied("uid-found")).To(BeFalse())
	g.Expect(fakeRuntime.Count("uid-web", fake.Kill)).To(BeZero(), "a process that stops on request is not killed")
	server := readWeb(g, f)
	g.Expect(server.Status.Stopping).NotTo(BeNil())
	g.Expect(server.Status.Stopping.Incarnation).To(BeEquivalentTo(3))
	g.Expect(server.Status.Stopping.Reason).To(Equal(v1alpha1.ReasonStopped))
}

// startUp runs berth up. The returned function interrupts it and returns its exit code.
func startUp(t *testing.T, f *fixture, args ...string) (end func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	code, done := make(chan int, 1), make(chan struct{})
	go func() {
		defer close(done)
		code <- f.run(ctx, append([]string{"up"}, args...)...)
	}()
	t.Cleanup(func() { // stop the control plane if the test fails
		cancel()
		<-done
	})
	return func() int {
		cancel()
		var got int
		NewWithT(t).Eventually(code, 2*time.Minute).Should(Receive(&got), f.err.String)
		return got
	}
}

// TestUp_StopsProcessesUnlessKept runs berth up with a real control plane and processes in memory. Ctrl-C must stop the processes without a failure, and with
// --keep they must keep running.
func TestUp_StopsProcessesUnlessKept(t *testing.T) {
	g := NewWithT(t)
	ctx := t.Context()
	fakeRuntime := fake.New(ctx, clock.RealClock{})
	state, manifests := t.TempDir(), t.TempDir()
	g.Expect(os.WriteFile(filepath.Join(manifests, "a.yaml"), []byte(
		"apiVersion: berth.dev/v1alpha1\nkind: Instance\nmetadata: {name: shell}\nspec: {process: {command: [sh]}}\n"), 0o600)).To(Succeed())
	kubeconfig := filepath.Join(state, "mine")
	args := []string{"--state-dir", state, "--kubeconfig", kubeconfig, "--assets", assets(t)}
	up := func(more ...string) (*fixture, func() int) {
		f := newFixture()
		f.app.newRuntime = persistent(fakeRuntime)
		return f, startUp(t, f, append(args, more...)...)
	}

	f, end := up("-f", manifests)
	g.Eventually(f.out.String, 3*time.Minute).Should(ContainSubstring("default instance/shell Ready=True Running"), f.err.String)
	g.Expect(f.out.String()).To(ContainSubstring("export KUBECONFIG=" + kubeconfig))
	first := readShell(g, kubeconfig)
	expectEndpointIsFound(g, kubeconfig)
	g.Expect(end()).To(BeZero(), f.err.String())
	g.Expect(fakeRuntime.Live(first.UID)).To(BeEmpty(), "Ctrl-C stops the processes")

	f, end = up("--keep")
	g.Eventually(f.out.String, 3*time.Minute).Should(ContainSubstring("default instance/shell Ready=True Running"), f.err.String)
	second := readShell(g, kubeconfig)
	g.Expect(second.UID).To(Equal(first.UID), "the objects stay")
	g.Expect(second.Status.Incarnation).To(Equal(first.Status.Incarnation + 1))
	g.Expect(second.Status.Failures).To(BeZero(), "a requested stop is not a failure")
	g.Expect(second.Status.LastExit.Reason).To(Equal(v1alpha1.ReasonStopped))
	g.Expect(end()).To(BeZero(), f.err.String())
	g.Expect(fakeRuntime.Live(first.UID)).To(Equal([]int64{second.Status.Incarnation}), "--keep leaves the processes running")

	f, end = up()
	g.Eventually(f.out.String, 3*time.Minute).Should(ContainSubstring("default instance/shell Ready=True Running"), f.err.String)
	g.Expect(readShell(g, kubeconfig).Status.Process).To(Equal(second.Status.Process), "the same process")
	g.Expect(end()).To(BeZero(), f.err.String())
	g.Expect(fakeRuntime.Violations()).To(BeEmpty())
}

func readShell(g Gomega, kubeconfig string) *v1alpha1.Instance {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	g.Expect(err).NotTo(HaveOccurred())
	api, err := client.New(config, client.Options{Scheme: manager.Scheme()})
	g.Expect(err).NotTo(HaveOccurred())
	instance := &v1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "shell"}}
	g.Expect(api.Get(context.Background(), client.ObjectKeyFromObject(instance), instance)).To(Succeed())
	return instance
}

// expectEndpointIsFound checks that a user without any permission finds the endpoint, which then rejects the user.
func expectEndpointIsFound(g Gomega, kubeconfig string) {
	ctx := context.Background()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	g.Expect(err).NotTo(HaveOccurred())
	admin, err := client.New(config, client.Options{Scheme: manager.Scheme()})
	g.Expect(err).NotTo(HaveOccurred())
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "nobody"}}
	g.Expect(admin.Create(ctx, account)).To(Succeed())
	token := &authenticationv1.TokenRequest{}
	g.Expect(admin.SubResource("token").Create(ctx, account, token)).To(Succeed())

	config.BearerToken = token.Status.Token
	nobody, err := client.New(config, client.Options{Scheme: manager.Scheme()})
	g.Expect(err).NotTo(HaveOccurred())
	var found *endpoint.Client
	g.Eventually(func() (err error) {
		found, err = endpoint.Find(ctx, config, nobody, endpoint.FindOptions{})
		return err
	}, timeout).Should(Succeed())
	defer found.Close()
	g.Eventually(func() error {
		_, err := found.Log(ctx, endpoint.Object{Namespace: "default", Resource: "instances", Name: "shell"}, endpoint.LogOptions{Tail: -1})
		return err
	}, timeout).Should(MatchError(ContainSubstring(`user "system:serviceaccount:default:nobody" may not get instances/log`)))
	expectTokenIsLimited(g, filepath.Dir(kubeconfig), config, admin)
}

// expectTokenIsLimited checks the token that a service account requests for itself and sends to the manager: only the manager accepts it.
func expectTokenIsLimited(g Gomega, dir string, config *rest.Config, admin client.Client) {
	ctx := context.Background()
	tokens := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "tokens"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"serviceaccounts/token"}, ResourceNames: []string{"nobody"}, Verbs: []string{"create"}},
		{APIGroups: []string{"berth.dev"}, Resources: []string{"instances/log"}, Verbs: []string{"get"}},
	}}
	g.Expect(admin.Create(ctx, tokens)).To(Succeed())
	g.Expect(admin.Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "tokens"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "tokens"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: "nobody"}},
	})).To(Succeed())
	nobody, err := client.New(config, client.Options{Scheme: manager.Scheme()})
	g.Expect(err).NotTo(HaveOccurred())
	sent := make(chan string, 1)
	listener := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent <- strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		w.WriteHeader(http.StatusTeapot)
	}))
	defer listener.Close()
	ca := filepath.Join(dir, "ca.pem")
	g.Expect(os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: listener.Certificate().Raw}), 0o600)).To(Succeed())
	shell := endpoint.Object{Namespace: "default", Resource: "instances", Name: "shell"}
	g.Eventually(func(g Gomega) { // until the API server has the role
		impostor, err := endpoint.Find(ctx, config, nobody, endpoint.FindOptions{URL: listener.URL, CAFile: ca})
		g.Expect(err).NotTo(HaveOccurred())
		defer impostor.Close()
		_, err = impostor.Log(ctx, shell, endpoint.LogOptions{Tail: -1})
		g.Expect(err).To(HaveOccurred())
		stolen := rest.CopyConfig(config)
		stolen.BearerToken = <-sent
		g.Expect(stolen.BearerToken).NotTo(Equal(config.BearerToken))
		thief, err := client.New(stolen, client.Options{Scheme: manager.Scheme()})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(apierrors.IsUnauthorized(thief.Create(ctx, &authenticationv1.SelfSubjectReview{}))).To(BeTrue())
	}, timeout).Should(Succeed())

	// The manager accepts the token, also when another user requests the token of the account.
	named, err := endpoint.Find(ctx, config, admin, endpoint.FindOptions{ServiceAccount: "default/nobody"})
	g.Expect(err).NotTo(HaveOccurred())
	defer named.Close()
	g.Eventually(func() error {
		_, err := named.Log(ctx, shell, endpoint.LogOptions{Tail: -1})
		return err
	}, timeout).Should(MatchError(ContainSubstring("this runtime does not keep output")), "the manager accepts the token")
	_, err = endpoint.Find(ctx, config, admin, endpoint.FindOptions{ServiceAccount: "default/missing"})
	g.Expect(err).To(MatchError(ContainSubstring("service account default/missing")))
}

// assets returns the directory with berth-apiserver.
func assets(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../../bin")
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return dir
}
