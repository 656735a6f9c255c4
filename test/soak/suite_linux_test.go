// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package soak lets ten clients change fifty Instances for a minute, with a real tmux and a real Docker Engine. Then it compares the final state with
// the specs.
package soak

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/moby/moby/client"
	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	kube "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/manager"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/conformance"
	"github.com/berth-dev/berth/internal/runtime/docker"
	"github.com/berth-dev/berth/internal/runtime/docker/dockertest"
	"github.com/berth-dev/berth/internal/runtime/host"
	"github.com/berth-dev/berth/internal/runtime/tmux"
	"github.com/berth-dev/berth/test/need"
	"github.com/berth-dev/berth/test/testenv"
)

const (
	patience       = 3 * time.Minute
	image          = "berth-workload:latest"
	otherNamespace = "other" // the name of a second namespace
)

func TestMain(m *testing.M) {
	code := m.Run()
	conformance.RemoveWorkload()
	os.Exit(code)
}

// world is an API server and a manager whose Instances run in tmux and in Docker.
type world struct {
	*WithT
	api      kube.Client
	runtimes *runtime.Registry
	engine   *client.Client // nil if Docker is unavailable
	socket   string         // name of the tmux server's socket
}

func newWorld(t *testing.T) *world {
	t.Helper()
	before := goleak.IgnoreCurrent()
	ctrl.SetLogger(logr.Discard())
	w := &world{WithT: NewWithT(t), socket: "berth-soak-" + strconv.Itoa(os.Getpid())}
	w.SetDefaultEventuallyTimeout(patience)
	w.SetDefaultEventuallyPollingInterval(100 * time.Millisecond)
	t.Cleanup(func() {
		w.Eventually(testenv.CheckLeaks).WithArguments(before).Should(Succeed(), "no goroutine may remain")
	})

	environment := testenv.New(filepath.Join("..", ".."))
	config, err := environment.Start()
	w.Expect(err).NotTo(HaveOccurred(), "start an API server")
	t.Cleanup(func() { w.Expect(environment.Stop()).To(Succeed()) })
	config.QPS, config.Burst = 1000, 2000
	w.api, err = kube.New(config, kube.Options{Scheme: manager.Scheme()})
	w.Expect(err).NotTo(HaveOccurred())
	w.Expect(w.api.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: otherNamespace}})).To(Succeed())

	dir, err := os.MkdirTemp("", "berth-soak-") // not t.TempDir, because the path of a socket must be short
	w.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { w.Expect(os.RemoveAll(dir)).To(Succeed()) })
	w.runtimes = runtime.NewRegistry(w.startHostRuntime(t, dir), logr.Discard(), w.newBackends(t, dir)...)
	mgr, err := manager.New(config, manager.Options{Runtimes: w.runtimes, LeftoverInterval: 2 * time.Second, LeftoverGrace: time.Second, ShutdownTimeout: patience})
	w.Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		w.Eventually(ended).Should(Receive(BeNil()), "the manager must stop")
		w.killAll()
	})
	return w
}

// killAll kills the processes that remain after a failed test.
func (w *world) killAll() {
	list, _ := w.runtimes.List(context.Background())
	for _, incarnation := range list {
		if backends, err := w.runtimes.Find(context.Background(), types.UID(incarnation.UID)); err == nil {
			_ = backends[0].Kill(context.Background(), types.UID(incarnation.UID), incarnation.Number)
		}
	}
}

var hostRuntime *host.Host

// startHostRuntime returns the host runtime. The tmux runtime runs the processes of its sessions through this runtime.
func (w *world) startHostRuntime(t *testing.T, dir string) *host.Host {
	t.Helper()
	build := exec.Command("go", "build", "-trimpath", "-o", dir+"/", "github.com/berth-dev/berth/cmd/berth-shim")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	output, err := build.CombinedOutput()
	w.Expect(err).NotTo(HaveOccurred(), "%s", output)
	hostRuntime, err = host.New(host.Options{StateDir: filepath.Join(dir, "host"), ShimPath: filepath.Join(dir, "berth-shim")})
	w.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { w.Expect(hostRuntime.Close()).To(Succeed()) })
	return hostRuntime
}

// newBackends returns the backends for tmux and Docker. If Docker is unavailable, it marks the Docker backend as missing, and the test runs without containers.
func (w *world) newBackends(t *testing.T, dir string) []runtime.Backend {
	t.Helper()
	sessions, err := tmux.New(hostRuntime, tmux.Options{Dir: filepath.Join(dir, "tmux"), Shim: filepath.Join(dir, "berth-shim")})
	w.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		sessions.Close()
		_, _ = w.tmux("kill-server")
		w.Eventually(func() error { _, err := w.tmux("list-sessions"); return err }).Should(HaveOccurred(), "the tmux server must exit")
	})
	members := []runtime.Backend{{Type: v1alpha1.RuntimeTmux, Runtime: sessions}}

	engine, err := dockertest.Start()
	if errors.Is(err, dockertest.ErrUnavailable) {
		need.Without(t, err)
		return append(members, runtime.Backend{Type: v1alpha1.RuntimeDocker, Missing: err.Error()})
	}
	w.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { w.Expect(engine.Stop()).To(Succeed()) })
	w.Expect(engine.Image(t.Context(), image, conformance.Workload(t))).To(Succeed())
	w.engine, err = engine.Client()
	w.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { w.Expect(w.engine.Close()).To(Succeed()) })
	containers, err := docker.New(docker.Options{Host: engine.Host, Dir: filepath.Join(dir, "docker")})
	w.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { w.Expect(containers.Close()).To(Succeed()) })
	return append(members, runtime.Backend{Type: v1alpha1.RuntimeDocker, Runtime: containers})
}

// tmux runs a tmux command on the server of this suite.
func (w *world) tmux(args ...string) (string, error) {
	output, err := exec.Command("tmux", append([]string{"-L", w.socket, "-f", "/dev/null"}, args...)...).CombinedOutput()
	return strings.TrimSpace(string(output)), err
}
