// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package integration tests user scenarios with the real manager, a real API server and simulated processes.
package integration

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/activity"
	"github.com/berth-dev/berth/internal/manager"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/fake"
	"github.com/berth-dev/berth/internal/runtime/langserver"
	"github.com/berth-dev/berth/internal/runtime/pod"
	"github.com/berth-dev/berth/test/need"
	"github.com/berth-dev/berth/test/testenv"
)

const (
	// patience is how long to wait for an expected state. It is long enough for slow machines; on a fast machine no spec waits that long.
	patience = 90 * time.Second
	// interval is the polling interval.
	interval = 50 * time.Millisecond
	// stablePeriod is how long a state must stay unchanged where a spec checks that nothing happens.
	stablePeriod = 500 * time.Millisecond
)

var (
	// config and k8s connect to the API server; k8s reads and writes without a cache.
	config *rest.Config
	k8s    client.WithWatch
	// rt is the simulated host runtime. Its processes continue when a manager stops, as processes on a real host do.
	rt *fake.Sockets
	// tmux is the simulated runtime for Instances in tmux sessions.
	tmux *fake.Sessions
	// activityTracker records the use of terminals.
	activityTracker *activity.Tracker

	failures    testenv.Failures
	environment apiServer
	// servesPods reports whether the API server serves Pods.
	servesPods  bool
	stopRuntime context.CancelFunc
	stopManager func()
)

// apiServer is kube-apiserver if it is installed. Otherwise it is berth-apiserver, and the specs that need Pods are skipped.
type apiServer interface {
	Start() (*rest.Config, error)
	Stop() error
}

func newAPIServer(root string) apiServer {
	if servesPods = need.WithoutPods(root) == nil; servesPods {
		return testenv.WithPods(root)
	}
	return testenv.New(root)
}

func TestIntegration(t *testing.T) {
	before := goleak.IgnoreCurrent()
	RegisterFailHandler(Fail)
	SetDefaultEventuallyTimeout(patience)
	SetDefaultEventuallyPollingInterval(interval)
	SetDefaultConsistentlyDuration(stablePeriod)
	SetDefaultConsistentlyPollingInterval(interval)
	EnforceDefaultTimeoutsWhenUsingContexts()
	RunSpecs(t, "Integration")
	failures.Report(t)
	NewWithT(t).Eventually(testenv.CheckLeaks).WithArguments(before).WithTimeout(patience).Should(Succeed(), "goroutines remain")
}

var _ = ReportAfterEach(failures.Note)

var _ = BeforeSuite(func() {
	ctrl.SetLogger(logr.Discard())
	environment = newAPIServer(filepath.Join("..", ".."))
	var err error
	config, err = environment.Start()
	Expect(err).NotTo(HaveOccurred(), "start the control plane")
	config.QPS, config.Burst = 500, 1000
	k8s, err = client.NewWithWatch(config, client.Options{Scheme: manager.Scheme()})
	Expect(err).NotTo(HaveOccurred())

	var ctx context.Context
	ctx, stopRuntime = context.WithCancel(context.Background())
	rt = fake.WithSockets(fake.New(ctx, clock.RealClock{}))
	tmux = fake.WithSessions(fake.New(ctx, clock.RealClock{}))
	activityTracker = activity.New(nil)
	stopManager = startManager()
})

var _ = AfterSuite(func() {
	if stopManager != nil {
		stopManager()
	}
	if stopRuntime != nil {
		stopRuntime()
	}
	Expect(environment.Stop()).To(Succeed())
	if rt != nil {
		Expect(append(rt.Violations(), tmux.Violations()...)).To(BeEmpty(), "two incarnations of one object ran at the same time")
	}
})

// startManager runs a manager until the returned function is called.
func startManager() (stop func()) { return startManagerWith(config) }

// startManagerWith runs a manager that connects to the API server with the given config, until the returned function is called. changes modify the options
// of the manager.
func startManagerWith(config *rest.Config, changes ...func(*manager.Options)) (stop func()) {
	options := manager.Options{Presence: activityTracker, LeftoverInterval: time.Second, LeftoverGrace: time.Second, ShutdownTimeout: patience}
	backends := []runtime.Backend{{Type: v1alpha1.RuntimeTmux, Runtime: tmux}}
	closePods := func() {}
	if servesPods {
		var pods runtime.Backend
		pods, options.LanguageServersInPods, closePods = newPods(config)
		backends = append(backends, pods)
	}
	options.Runtimes = runtime.NewRegistry(rt, logr.Discard(), backends...)
	for _, change := range changes {
		change(&options)
	}
	mgr, err := manager.New(config, options)
	Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		defer GinkgoRecover()
		ended <- mgr.Start(ctx)
	}()
	return func() {
		cancel()
		Eventually(ended).Should(Receive(BeNil()), "the manager stops when its context is canceled")
		closePods()
	}
}

// newPods returns the runtimes for Pods and for language servers in Pods, and a function that closes both.
func newPods(config *rest.Config) (backend runtime.Backend, servers *langserver.Runtime, closeBoth func()) {
	pods, err := pod.New(pod.Options{Client: kubernetes.NewForConfigOrDie(config)})
	Expect(err).NotTo(HaveOccurred())
	servers, err = langserver.NewInPods(pods, langserver.PodOptions{
		Client: kubernetes.NewForConfigOrDie(config),
		Image: func(context.Context) (langserver.Image, error) {
			return langserver.Image{Name: "localhost/berth:1"}, nil
		},
	})
	Expect(err).NotTo(HaveOccurred())
	return runtime.Backend{Type: v1alpha1.RuntimePod, Runtime: pods}, servers, func() {
		servers.Close()
		Expect(pods.Close()).To(Succeed())
	}
}

// newNamespace creates a namespace for a spec, and deletes its objects after the spec.
func newNamespace(ctx context.Context) string {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "spec-"}}
	ExpectWithOffset(1, k8s.Create(ctx, namespace)).To(Succeed())
	DeferCleanup(func(ctx context.Context) { cleanUp(ctx, namespace.Name) })
	return namespace.Name
}
