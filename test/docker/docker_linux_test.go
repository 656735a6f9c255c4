// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package docker tests Instances in containers with a real API server and a real Docker Engine.
package docker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	kube "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/manager"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/conformance"
	"github.com/berth-dev/berth/internal/runtime/docker"
	"github.com/berth-dev/berth/internal/runtime/docker/dockertest"
	"github.com/berth-dev/berth/internal/runtime/fake"
	"github.com/berth-dev/berth/test/need"
	"github.com/berth-dev/berth/test/testenv"
)

const (
	patience = 3 * time.Minute
	image    = "berth-workload:latest"
)

var (
	engine *dockertest.Engine
	// errNoEngine is why there is no engine. The tests are then skipped.
	errNoEngine error
)

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) (code int) {
	defer conformance.RemoveWorkload()
	started, err := dockertest.Start()
	if errors.Is(err, dockertest.ErrUnavailable) {
		errNoEngine = err
		return m.Run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	engine = started
	defer func() {
		if err := engine.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "clean up the engine:", err)
			code = 1
		}
	}()
	return m.Run()
}

// world is an API server with a manager that can run Instances in containers.
type world struct {
	*WithT
	ctx     context.Context
	api     kube.Client
	engine  *client.Client
	runtime *docker.Runtime
}

func newWorld(t *testing.T) *world {
	t.Helper()
	need.Available(t, errNoEngine)
	ctrl.SetLogger(logr.Discard())
	w := &world{WithT: NewWithT(t), ctx: context.Background()}
	w.SetDefaultEventuallyTimeout(patience)
	w.Expect(engine.Image(w.ctx, image, conformance.Workload(t))).To(Succeed())
	environment := testenv.New(filepath.Join("..", ".."))
	config, err := environment.Start()
	w.Expect(err).NotTo(HaveOccurred(), "start an API server")
	t.Cleanup(func() { w.Expect(environment.Stop()).To(Succeed()) })
	w.engine, err = engine.Client()
	w.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { w.Expect(w.engine.Close()).To(Succeed()) })
	w.runtime, err = docker.New(docker.Options{Host: engine.Host, Dir: t.TempDir()})
	w.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { w.Expect(w.runtime.Close()).To(Succeed()) })
	w.api, err = kube.New(config, kube.Options{Scheme: manager.Scheme()})
	w.Expect(err).NotTo(HaveOccurred())

	ctx, cancel := context.WithCancel(w.ctx)
	host := fake.New(ctx, clock.RealClock{})
	all := runtime.NewRegistry(host, logr.Discard(), runtime.Backend{Type: v1alpha1.RuntimeDocker, Runtime: w.runtime})
	mgr, err := manager.New(config, manager.Options{Runtimes: all, ShutdownTimeout: patience})
	w.Expect(err).NotTo(HaveOccurred())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		w.Eventually(ended).Should(Receive(BeNil()))
	})
	return w
}

// runningContainers returns the IDs of the running containers.
func (w *world) runningContainers() []string {
	list, err := w.engine.ContainerList(w.ctx, client.ContainerListOptions{})
	w.Expect(err).NotTo(HaveOccurred())
	var ids []string
	for _, c := range list.Items {
		ids = append(ids, c.ID)
	}
	return ids
}

func newContainerInstance(name string, runtime v1alpha1.DockerRuntime) *v1alpha1.Instance {
	instance := &v1alpha1.Instance{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	instance.Spec.Process.Command = []string{"/workload", "sleep"}
	instance.Spec.Runtime = &v1alpha1.InstanceRuntime{Type: v1alpha1.RuntimeDocker, Docker: &runtime}
	return instance
}

func (w *world) waitForCondition(instance *v1alpha1.Instance, conditionType, reason string) {
	w.Eventually(func(g Gomega) {
		g.Expect(w.api.Get(w.ctx, kube.ObjectKeyFromObject(instance), instance)).To(Succeed())
		condition := meta.FindStatusCondition(instance.Status.Conditions, conditionType)
		g.Expect(condition).NotTo(BeNil())
		g.Expect(string(condition.Status)+" "+condition.Reason).To(Equal("True "+reason), condition.Message)
	}).Should(Succeed())
}

func (w *world) deleteAndWait(instance *v1alpha1.Instance) {
	w.Expect(w.api.Delete(w.ctx, instance)).To(Succeed())
	w.Eventually(func() bool {
		return apierrors.IsNotFound(w.api.Get(w.ctx, kube.ObjectKeyFromObject(instance), &v1alpha1.Instance{}))
	}).Should(BeTrue(), "the object must be deleted")
}

func TestInstance_RunsInDockerContainer(t *testing.T) {
	w := newWorld(t)
	agent := newContainerInstance("agent", v1alpha1.DockerRuntime{Image: image})
	w.Expect(w.api.Create(w.ctx, agent)).To(Succeed())
	w.waitForCondition(agent, v1alpha1.ConditionReady, v1alpha1.ReasonRunning)
	first := agent.Status.Process.ContainerID
	w.Expect(w.runningContainers()).To(ConsistOf(first))

	// If another client removes the container, the exit code of the process is unknown, and the next incarnation gets a new container.
	_, err := w.engine.ContainerRemove(w.ctx, first, client.ContainerRemoveOptions{Force: true})
	w.Expect(err).NotTo(HaveOccurred())
	w.Eventually(func(g Gomega) {
		g.Expect(w.api.Get(w.ctx, kube.ObjectKeyFromObject(agent), agent)).To(Succeed())
		g.Expect(agent.Status.Incarnation).To(BeEquivalentTo(2))
		g.Expect(meta.IsStatusConditionTrue(agent.Status.Conditions, v1alpha1.ConditionReady)).To(BeTrue())
	}).Should(Succeed())
	w.Expect(w.runningContainers()).To(ConsistOf(agent.Status.Process.ContainerID))
	w.Expect(agent.Status.LastExit.ExitCode).To(BeNil(), "the exit code is unknown")

	w.deleteAndWait(agent)
	w.Expect(w.runningContainers()).To(BeEmpty())

	missing := newContainerInstance("missing", v1alpha1.DockerRuntime{Image: "nobody/has:this"})
	w.Expect(w.api.Create(w.ctx, missing)).To(Succeed())
	w.waitForCondition(missing, v1alpha1.ConditionStalled, v1alpha1.ReasonImageMissing)
	w.deleteAndWait(missing)
}

func TestInstance_ResumesSessionInNextContainer(t *testing.T) {
	w := newWorld(t)
	agent := newContainerInstance("agent", v1alpha1.DockerRuntime{Image: image})
	agent.Spec.Process.ResumeCommand = []string{"/workload", "sleep", "--resume=$(SESSION_ID)"}
	w.Expect(w.api.Create(w.ctx, agent)).To(Succeed())
	w.waitForCondition(agent, v1alpha1.ConditionReady, v1alpha1.ReasonRunning)
	expectCommand := func(command, resumed string) {
		t.Helper()
		found, err := w.engine.ContainerInspect(w.ctx, agent.Status.Process.ContainerID, client.ContainerInspectOptions{})
		w.Expect(err).NotTo(HaveOccurred())
		w.Expect(strings.Join(found.Container.Config.Entrypoint, " ")).To(Equal(command))
		w.Expect(found.Container.Config.Env).To(ContainElements("BERTH_RESUMED="+resumed, fmt.Sprintf("BERTH_INCARNATION=%d", agent.Status.Incarnation)))
	}
	expectCommand("/workload sleep", "false")
	before := agent.DeepCopy()
	agent.Spec.RestartToken = "again"
	w.Expect(w.api.Patch(w.ctx, agent, kube.MergeFrom(before))).To(Succeed())
	w.Eventually(func(g Gomega) {
		g.Expect(w.api.Get(w.ctx, kube.ObjectKeyFromObject(agent), agent)).To(Succeed())
		g.Expect(agent.Status.Process).NotTo(BeNil())
		g.Expect(agent.Status.Process.Incarnation).To(BeEquivalentTo(2))
	}).Should(Succeed())
	expectCommand("/workload sleep --resume="+string(agent.UID), "true")
	w.deleteAndWait(agent)
}

func TestInstance_RunsEntrypointOfImage(t *testing.T) {
	w := newWorld(t)
	sleeping, bare := "berth-sleeping:latest", "berth-bare:latest"
	w.Expect(engine.Image(w.ctx, sleeping, conformance.Workload(t), `CMD ["sleep"]`)).To(Succeed())
	w.Expect(engine.Image(w.ctx, bare, conformance.Workload(t), "ENTRYPOINT []")).To(Succeed())
	agent := newContainerInstance("agent", v1alpha1.DockerRuntime{Image: sleeping})
	agent.Spec.Process.Command = nil
	w.Expect(w.api.Create(w.ctx, agent)).To(Succeed())
	w.waitForCondition(agent, v1alpha1.ConditionReady, v1alpha1.ReasonRunning)
	before := agent.DeepCopy()
	agent.Spec.Process.Command = []string{"/workload", "sleep"}
	w.Expect(w.api.Patch(w.ctx, agent, kube.MergeFrom(before))).To(Succeed())
	w.Eventually(func(g Gomega) {
		g.Expect(w.api.Get(w.ctx, kube.ObjectKeyFromObject(agent), agent)).To(Succeed())
		g.Expect(agent.Status.Incarnation).To(BeEquivalentTo(2), "a command is another program")
	}).Should(Succeed())
	w.deleteAndWait(agent)

	empty := newContainerInstance("empty", v1alpha1.DockerRuntime{Image: bare})
	empty.Spec.Process.Command = nil
	w.Expect(w.api.Create(w.ctx, empty)).To(Succeed())
	w.waitForCondition(empty, v1alpha1.ConditionStalled, v1alpha1.ReasonCommandNotFound)
	w.deleteAndWait(empty)
}

func TestInstance_AdoptsContainerAndLeavesItRunning(t *testing.T) {
	w := newWorld(t)
	made, err := w.engine.ContainerCreate(w.ctx, client.ContainerCreateOptions{
		Name: "agent-1", Config: &container.Config{Image: image, Cmd: []string{"sleep"}}, HostConfig: &container.HostConfig{NetworkMode: "none"},
	})
	w.Expect(err).NotTo(HaveOccurred())
	_, err = w.engine.ContainerStart(w.ctx, made.ID, client.ContainerStartOptions{})
	w.Expect(err).NotTo(HaveOccurred())
	defer func() {
		_, err := w.engine.ContainerRemove(w.ctx, made.ID, client.ContainerRemoveOptions{Force: true})
		w.Expect(err).NotTo(HaveOccurred())
	}()

	found := newContainerInstance("found", v1alpha1.DockerRuntime{Container: "agent-1"})
	found.Spec.Adoption = v1alpha1.AdoptionRequired
	w.Expect(w.api.Create(w.ctx, found)).To(Succeed())
	w.waitForCondition(found, v1alpha1.ConditionReady, v1alpha1.ReasonRunning)
	w.waitForCondition(found, v1alpha1.ConditionAdopted, v1alpha1.ReasonAdopted)
	w.Expect(found.Status.Process.ContainerID).To(Equal(made.ID))
	second := newContainerInstance("second", v1alpha1.DockerRuntime{Container: "agent-1"})
	second.Spec.Adoption = v1alpha1.AdoptionRequired
	w.Expect(w.api.Create(w.ctx, second)).To(Succeed())
	w.waitForCondition(second, v1alpha1.ConditionConflict, v1alpha1.ReasonSessionClaimed)
	w.deleteAndWait(second)

	w.deleteAndWait(found)
	w.Expect(w.runningContainers()).To(ConsistOf(made.ID), "the adopted container must keep running")
}
