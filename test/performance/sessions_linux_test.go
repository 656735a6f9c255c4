// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package performance

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/manager"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/docker"
)

// startsPerWay is the number of sessions or containers that are created in each of the two ways: by hand, and by an Instance.
const startsPerWay = 20

// TestTmux_TimeFromApplyToReady compares the time from the creation of an Instance in tmux until it is Ready with the time of tmux new-session by hand.
func TestTmux_TimeFromApplyToReady(t *testing.T) {
	socket := fmt.Sprintf("berth-bench-ready-%d", os.Getpid())
	openSessions(t, socket, 1) // starts the tmux server outside the measurement
	runManagerWith(t, runtime.Backend{Type: v1alpha1.RuntimeTmux, Runtime: openTmux(t)})
	added, byHand := compareReadyTimes(t, func(i *v1alpha1.Instance) {
		i.Spec.Runtime = &v1alpha1.InstanceRuntime{Type: v1alpha1.RuntimeTmux, Tmux: &v1alpha1.TmuxRuntime{Session: i.Name, Socket: socket}}
	}, func(ctx context.Context, name string) error {
		return exec.CommandContext(ctx, "tmux", "-L", socket, "-f", os.DevNull, "new-session", "-d", "-s", name, "sleep", "infinity").Run()
	})
	addFigure("tmux new-session by hand, p50", "%.1f ms", byHand)
	expectAtMost(t, "an Instance in tmux, creation to Ready minus tmux new-session, p50", added, 30, 5, " ms")
}

// TestDocker_TimeFromApplyToReady compares the time from the creation of an Instance in Docker until it is Ready with the time of docker run by hand.
func TestDocker_TimeFromApplyToReady(t *testing.T) {
	g := NewWithT(t)
	engine, api := startEngine(t)
	opened, err := docker.New(docker.Options{Host: engine.Host, Dir: t.TempDir()})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(opened.Close()).To(Succeed()) })
	runManagerWith(t, runtime.Backend{Type: v1alpha1.RuntimeDocker, Runtime: opened})
	added, byHand := compareReadyTimes(t, func(i *v1alpha1.Instance) {
		i.Spec.Process.Command = []string{"/workload", "sleep"}
		i.Spec.Runtime = &v1alpha1.InstanceRuntime{Type: v1alpha1.RuntimeDocker, Docker: &v1alpha1.DockerRuntime{Image: containerImage, Network: "none"}}
	}, func(ctx context.Context, name string) error { return runContainer(ctx, api, name) })
	addFigure("docker run by hand, p50", "%.1f ms", byHand)
	expectAtMost(t, "an Instance in Docker, creation to Ready minus docker run, p50", added, 30, 8, " ms")
}

// runManagerWith runs a manager until the test ends. The given backend is the manager's only backend.
func runManagerWith(t *testing.T, member runtime.Backend) {
	t.Helper()
	g := NewWithT(t)
	all := runtime.NewRegistry(member.Runtime, logr.Discard(), member)
	mgr, err := manager.New(config, manager.Options{Runtimes: all, ShutdownTimeout: patience})
	g.Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(backgroundContext)
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		g.Eventually(ended).WithTimeout(patience).Should(Receive(BeNil()))
	})
	g.Expect(mgr.GetCache().WaitForCacheSync(t.Context())).To(BeTrue())
}

// compareReadyTimes creates sessions or containers alternately by hand and as Instances. It returns, in milliseconds, by how much the median time of an
// Instance exceeds the median time by hand, and the median time by hand.
func compareReadyTimes(t *testing.T, in func(*v1alpha1.Instance), byHand func(context.Context, string) error) (added, hand float64) {
	t.Helper()
	g := NewWithT(t)
	namespace := newNamespace(t)
	f := follow(t, namespace)
	var ours, theirs []float64
	for i := range startsPerWay {
		begun := time.Now()
		g.Expect(byHand(t.Context(), fmt.Sprintf("hand-%d", i))).To(Succeed())
		theirs = append(theirs, milliseconds(time.Since(begun)))
		object := newInstance(namespace, fmt.Sprintf("place-%d", i), "sleep", "infinity")
		in(object)
		ready := f.expect(object.Name, isReady)
		begun = time.Now()
		g.Expect(k8s.Create(t.Context(), object)).To(Succeed())
		at, err := ready()
		g.Expect(err).NotTo(HaveOccurred())
		ours = append(ours, milliseconds(at.Sub(begun)))
	}
	deleteObjects(t, namespace)
	return median(ours) - median(theirs), median(theirs)
}
