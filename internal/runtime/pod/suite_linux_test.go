// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/conformance"
	"github.com/berth-dev/berth/test/need"
)

// kubeconfigVariable is the environment variable with the path of the kubeconfig of a test cluster. The node of that cluster must be this machine, and tests
// create and delete Pods there. `make cluster` creates such a cluster.
const kubeconfigVariable = "BERTH_TEST_KUBECONFIG"

const testImage = "localhost/berth/workload:test"

func TestMain(m *testing.M) {
	code := m.Run()
	if err := testServer.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stop the API server:", err)
		code = 1
	}
	if code == 0 {
		if err := leaks(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// leaks returns the goroutines that remain after everything was closed. The goroutines of a client-go connection end with its next heartbeat, within 5 seconds.
func leaks() error {
	for late := time.After(20 * time.Second); ; {
		err := goleak.Find()
		if err == nil {
			return nil
		}
		select {
		case <-late:
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// fixture is a Runtime with its own namespace. It cleans up after the test.
type fixture struct {
	testing.TB
	*WithT
	*Runtime
	api       kubernetes.Interface
	namespace string
	ctx       context.Context
	started   sync.Map // the UIDs of Start
}

// Start sets the namespace of the object first, as a reconciler does.
func (f *fixture) Start(ctx context.Context, p runtime.Process) error {
	f.started.Store(p.UID, nil)
	f.SetNamespace(p.UID, f.namespace)
	return f.Runtime.Start(ctx, p)
}

// namespaceFor creates a namespace with everything that Pods need, and removes it after the test.
func namespaceFor(t testing.TB, api kubernetes.Interface, labels map[string]string) string {
	t.Helper()
	g, ctx := NewWithT(t), context.Background()
	made, err := api.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "berth-pod-", Labels: labels}}, metav1.CreateOptions{})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		g.Expect(api.CoreV1().Namespaces().Delete(ctx, made.Name, metav1.DeleteOptions{})).To(Succeed())
		g.Eventually(func() bool {
			_, err := api.CoreV1().Namespaces().Get(ctx, made.Name, metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		}).WithTimeout(2*conformance.Timeout).Should(BeTrue(), "objects of the test are left, so the namespace is not removed")
	})
	g.Eventually(func() error {
		_, err := api.CoreV1().ServiceAccounts(made.Name).Get(ctx, "default", metav1.GetOptions{})
		return err
	}).WithTimeout(conformance.Timeout).Should(Succeed())
	return made.Name
}

// clusterClient returns a client for the cluster of the tests.
func clusterClient(t testing.TB) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv(kubeconfigVariable))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	config.QPS, config.Burst = 200, 400
	return clientFor(t, config)
}

// access is a client for an API server with the configuration that connections to terminals need.
type access struct {
	kubernetes.Interface
	config *rest.Config
}

// clientFor returns a client whose connections are closed after the test.
func clientFor(t testing.TB, config *rest.Config) kubernetes.Interface {
	t.Helper()
	http, err := rest.HTTPClientFor(config)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { utilnet.CloseIdleConnectionsFor(http.Transport) })
	api, err := kubernetes.NewForConfigAndClient(config, http)
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	return access{api, config}
}

func newFixture(t testing.TB, api kubernetes.Interface, namespace string) *fixture {
	t.Helper()
	f := &fixture{TB: t, WithT: NewWithT(t), api: api, namespace: namespace, ctx: context.Background()}
	f.open()
	t.Cleanup(f.clean)
	return f
}

func (f *fixture) open() {
	f.Helper()
	options := Options{Client: f.api, Namespaces: []string{f.namespace}}
	if way, reaches := f.api.(access); reaches {
		options.Config = way.config
	}
	r, err := New(options)
	f.Expect(err).NotTo(HaveOccurred())
	f.Runtime = r
}

func (f *fixture) reopen() {
	f.Helper()
	f.Expect(f.Close()).To(Succeed())
	f.open()
	f.started.Range(func(uid, _ any) bool {
		f.SetNamespace(uid.(types.UID), f.namespace)
		return true
	})
}

// clean stops and forgets everything, and checks that nothing is left.
func (f *fixture) clean() {
	f.Helper()
	all, err := f.List(f.ctx)
	f.Expect(err).NotTo(HaveOccurred())
	for _, i := range all {
		f.Expect(f.Kill(f.ctx, types.UID(i.UID), i.Number)).To(Succeed())
	}
	for _, i := range all {
		f.Eventually(func() error { return f.Forget(f.ctx, types.UID(i.UID)) }).WithTimeout(conformance.Timeout).WithPolling(50 * time.Millisecond).Should(Succeed())
	}
	pods, err := f.api.CoreV1().Pods(f.namespace).List(f.ctx, metav1.ListOptions{})
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(pods.Items).To(BeEmpty(), "Pods are left")
	secrets, err := f.api.CoreV1().Secrets(f.namespace).List(f.ctx, metav1.ListOptions{})
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(secrets.Items).To(BeEmpty(), "Secrets are left")
	f.Expect(f.Close()).To(Succeed())
	f.Expect(f.Close()).To(Succeed(), "again")
}

// asRoot is a Pod template with which the program runs as root and can read and write the files of the tests.
const asRoot = `{"spec": {"securityContext": {"runAsNonRoot": false, "runAsUser": 0},
	"volumes": [{"name": "tests", "hostPath": {"path": %q}}],
	"containers": [{"name": "main", "volumeMounts": [{"name": "tests", "mountPath": %q}]}]}}`

func (f *fixture) config(template string) []byte {
	text, err := json.Marshal(Config{Namespace: f.namespace, Image: testImage, Template: json.RawMessage(template)})
	f.Expect(err).NotTo(HaveOccurred())
	return text
}

// programPID returns the PID of the program of a Pod on this machine: the first process of its container.
func programPID(t *testing.T, i facts.Incarnation) int64 {
	t.Helper()
	_, id, _ := strings.Cut(i.ContainerID, "://")
	NewWithT(t).Expect(id).NotTo(BeEmpty())
	var program, first int64
	groups, _ := filepath.Glob("/proc/[0-9]*/cgroup")
	for _, file := range groups {
		text, _ := os.ReadFile(file)
		if !strings.Contains(string(text), id) {
			continue
		}
		status, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "status"))
		_, numbers, _ := strings.Cut(string(status), "NSpid:")
		numbers, _, _ = strings.Cut(numbers, "\n")
		both := strings.Fields(numbers)
		if len(both) < 2 {
			continue
		}
		outside, _ := strconv.ParseInt(both[0], 10, 64)
		inside, _ := strconv.ParseInt(both[len(both)-1], 10, 64)
		if program == 0 || inside < first {
			program, first = outside, inside
		}
	}
	NewWithT(t).Expect(program).NotTo(BeZero(), "the program of container %s", id)
	return program
}

// needCluster skips the test unless there is a test cluster.
func needCluster(t testing.TB) {
	t.Helper()
	if os.Getenv(kubeconfigVariable) == "" {
		need.Elsewhere(t, "make test-cluster")
	}
}

func TestConformance(t *testing.T) {
	needCluster(t)
	api := clusterClient(t)
	namespace := namespaceFor(t, api, nil)
	conformance.Run(t, func(t *testing.T) conformance.Harness {
		f := newFixture(t, api, namespace)
		return conformance.Harness{
			Features: conformance.Features{Processes: true, Logs: true, Container: true, PoliteKill: true, LogSnapshot: true, Results: true, MostResult: mostWords - 1},
			Runtime:  f,
			Program:  "/workload",
			Prepare: func(p *runtime.Process) {
				p.Config = f.config(fmt.Sprintf(asRoot, os.TempDir(), os.TempDir()))
				p.Grace = 10 * time.Second // a kubelet does not shorten a grace period that has begun
			},
			PID: programPID,
			Without: map[string]string{
				"terminates a program that SIGSTOP has stopped": "a kubelet sends no SIGCONT, so such a program is killed at the end of its grace period",
				"no interpreter": "a node reports a missing interpreter as an exit with code 1 after the start",
			},
			Reopen: func(t *testing.T) runtime.Runtime {
				t.Helper()
				f.reopen()
				return f
			},
		}
	})
}
