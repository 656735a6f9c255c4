// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package performance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/moby/moby/api/types/container"
	dockerclient "github.com/moby/moby/client"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/controllers/discovery"
	"github.com/berth-dev/berth/controllers/instance"
	"github.com/berth-dev/berth/controllers/process"
	"github.com/berth-dev/berth/internal/manager"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/conformance"
	"github.com/berth-dev/berth/internal/runtime/docker"
	"github.com/berth-dev/berth/internal/runtime/docker/dockertest"
	"github.com/berth-dev/berth/internal/runtime/host"
	"github.com/berth-dev/berth/internal/runtime/tmux"
	"github.com/berth-dev/berth/test/need"
)

// foundSessions and foundContainers are the numbers of sessions and containers that the discovery finds.
const (
	foundSessions   = 200
	foundContainers = 50
)

// TestDiscovery_PassTimes measures discovery passes over 200 sessions and 50 containers: the first pass, which creates an Instance for each session and
// container, and later passes that find no change. The test runs no controller that adopts the Instances; TestAdoption_TimeAndShimMemory measures adoption.
func TestDiscovery_PassTimes(t *testing.T) {
	g := NewWithT(t)
	socket := fmt.Sprintf("berth-bench-%d", os.Getpid())
	openSessions(t, socket, foundSessions)
	d := &v1alpha1.InstanceDiscovery{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "bench"}}
	d.Spec.Sources = []v1alpha1.DiscoverySource{{Name: "tmux", Type: v1alpha1.RuntimeTmux, Tmux: &v1alpha1.TmuxSource{Socket: socket}}}
	members := []runtime.Backend{{Type: v1alpha1.RuntimeTmux, Runtime: openTmux(t)}}
	things := foundSessions
	members = append(members, runtime.Backend{Type: v1alpha1.RuntimeDocker, Runtime: openContainers(t, foundContainers)})
	d.Spec.Sources = append(d.Spec.Sources, v1alpha1.DiscoverySource{Name: "docker", Type: v1alpha1.RuntimeDocker})
	things += foundContainers
	reconciler, read := newDiscoveryReconciler(t, members)
	g.Expect(k8s.Create(t.Context(), d)).To(Succeed())
	t.Cleanup(func() { deleteDiscovered(t, d) })
	g.Eventually(func() error { return read(client.ObjectKeyFromObject(d), &v1alpha1.InstanceDiscovery{}) }).WithTimeout(patience).Should(Succeed())

	look := func() float64 {
		begun := time.Now()
		_, err := reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(d)})
		g.Expect(err).NotTo(HaveOccurred())
		return time.Since(begun).Seconds()
	}
	bare := bareCreates(t, things)
	first := look()
	g.Expect(k8s.Get(t.Context(), client.ObjectKeyFromObject(d), d)).To(Succeed())
	g.Expect(d.Status.Totals.Created).To(BeEquivalentTo(things))
	// The next pass reads the cache, so wait until the cache has the writes of the first pass.
	seen := &v1alpha1.InstanceDiscovery{}
	g.Eventually(func(g Gomega) {
		g.Expect(read(client.ObjectKeyFromObject(d), seen)).To(Succeed())
		g.Expect(seen.ResourceVersion).To(Equal(d.ResourceVersion))
		list := &v1alpha1.InstanceList{}
		g.Expect(reconciler.Client.List(t.Context(), list)).To(Succeed())
		g.Expect(len(list.Items)).To(BeNumerically(">=", things))
	}).WithTimeout(patience).Should(Succeed())
	before := versions(t)
	var again []float64
	for range rounds {
		again = append(again, look())
	}
	g.Expect(versions(t)).To(Equal(before), "a pass that finds no change must not write")
	name := fmt.Sprintf("discovery of %d sessions and %d containers", foundSessions, things-foundSessions)
	addFigure(name+": first pass, which creates the Instances", "%.2f s", first)
	expectAtMost(t, name+": first pass / creating as many Instances by hand", first/bare, 1.5, 2, "×")
	expectAtMost(t, name+": pass without a change", median(again), 1, 3, " s")
	addFigure(name+": writes of a pass without a change", "0")
}

// bareCreates creates n Instances with the content of discovered Instances, with as many parallel requests as the controller makes. It returns the
// time in seconds.
func bareCreates(t *testing.T, n int) float64 {
	t.Helper()
	name := func(i int) string { return fmt.Sprintf("bare-%03d", i) }
	begun := time.Now()
	inParallel(t, n, 16, func(i int) error {
		object := newInstance("default", name(i), "sleep")
		object.Labels = map[string]string{v1alpha1.LabelDiscoveredBy: "nobody"}
		object.Spec.DisplayName, object.Spec.RestartPolicy = name(i), v1alpha1.RestartNever
		object.Spec.Adoption, object.Spec.DeletionPolicy = v1alpha1.AdoptionRequired, v1alpha1.DeletionOrphan
		object.Spec.Runtime = &v1alpha1.InstanceRuntime{Type: v1alpha1.RuntimeTmux, Tmux: &v1alpha1.TmuxRuntime{Session: name(i), Socket: "nobody"}}
		return k8s.Create(t.Context(), object)
	})
	took := time.Since(begun).Seconds()
	removeFinalizers(t, "default")
	inParallel(t, n, 16, func(i int) error { return k8s.Delete(t.Context(), newInstance("default", name(i), "sleep")) })
	return took
}

// versions returns the resource version of every Instance and InstanceDiscovery.
func versions(t *testing.T) map[types.UID]string {
	t.Helper()
	g := NewWithT(t)
	all := map[types.UID]string{}
	var instances v1alpha1.InstanceList
	var discoveries v1alpha1.InstanceDiscoveryList
	g.Expect(k8s.List(t.Context(), &instances)).To(Succeed())
	g.Expect(k8s.List(t.Context(), &discoveries)).To(Succeed())
	for i := range instances.Items {
		all[instances.Items[i].UID] = instances.Items[i].ResourceVersion
	}
	for i := range discoveries.Items {
		all[discoveries.Items[i].UID] = discoveries.Items[i].ResourceVersion
	}
	return all
}

// newDiscoveryReconciler returns a discovery reconciler that reads from a manager's cache, and a function that reads objects from the same cache.
func newDiscoveryReconciler(t *testing.T, members []runtime.Backend) (*discovery.Reconciler, func(client.ObjectKey, client.Object) error) {
	t.Helper()
	g := NewWithT(t)
	mgr, err := ctrl.NewManager(config, ctrl.Options{Scheme: manager.Scheme(), Metrics: metricsserver.Options{BindAddress: "0"}})
	g.Expect(err).NotTo(HaveOccurred())
	for index, of := range map[string]client.IndexerFunc{
		process.IndexUID:    func(o client.Object) []string { return []string{string(o.GetUID())} },
		instance.IndexPlace: func(o client.Object) []string { return []string{instance.Place(o.(*v1alpha1.Instance))} },
	} {
		g.Expect(mgr.GetFieldIndexer().IndexField(t.Context(), &v1alpha1.Instance{}, index, of)).To(Succeed())
	}
	_, err = mgr.GetCache().GetInformer(t.Context(), &v1alpha1.InstanceDiscovery{})
	g.Expect(err).NotTo(HaveOccurred())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	g.Expect(mgr.GetCache().WaitForCacheSync(t.Context())).To(BeTrue())
	all := runtime.NewRegistry(members[0].Runtime, logr.Discard(), members...)
	t.Cleanup(func() {
		cancel()
		g.Eventually(ended).WithTimeout(patience).Should(Receive(BeNil()))
	})
	read := func(key client.ObjectKey, o client.Object) error { return mgr.GetClient().Get(ctx, key, o) }
	return &discovery.Reconciler{
		Client: mgr.GetClient(), Reader: mgr.GetAPIReader(), Runtimes: all, Recorder: noEvents{}, Clock: clock.RealClock{},
	}, read
}

type noEvents struct{}

func (noEvents) Eventf(_, _ apiruntime.Object, _, _, _, _ string, _ ...any) {}

func openTmux(t *testing.T) *tmux.Runtime {
	t.Helper()
	g := NewWithT(t)
	held, err := host.New(host.Options{StateDir: stateDirectory(t), ShimPath: shimPath})
	g.Expect(err).NotTo(HaveOccurred())
	opened, err := tmux.New(held, tmux.Options{Dir: t.TempDir(), Shim: shimPath})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		opened.Close()
		g.Expect(held.Close()).To(Succeed())
	})
	return opened
}

// openSessions creates sessions on a separate tmux server. Without tmux it skips the test.
func openSessions(t *testing.T, socket string, n int) {
	t.Helper()
	need.Programs(t, "tmux")
	g := NewWithT(t)
	ask := func(args ...string) error {
		return exec.Command("tmux", append([]string{"-L", socket, "-f", os.DevNull}, args...)...).Run()
	}
	leftovers.addCleanup(func() { _ = ask("kill-server") })
	t.Cleanup(func() {
		_ = ask("kill-server")
		g.Eventually(func() error { return ask("list-sessions") }).WithTimeout(patience).ShouldNot(Succeed(), "the tmux server must exit")
	})
	for i := range n {
		g.Expect(ask("new-session", "-d", "-s", fmt.Sprintf("claude-%03d", i), "sleep", "infinity")).To(Succeed())
	}
}

// containerImage is the name of an image that contains a program that does nothing.
const containerImage = "berth-bench:latest"

// startEngine starts a separate Docker engine that has the image. If no engine can run on this machine, startEngine skips the test.
func startEngine(t *testing.T) (*dockertest.Engine, *dockerclient.Client) {
	t.Helper()
	g := NewWithT(t)
	engine, err := dockertest.Start()
	if errors.Is(err, dockertest.ErrUnavailable) {
		need.Available(t, err)
	}
	g.Expect(err).NotTo(HaveOccurred())
	leftovers.addCleanup(func() { _ = engine.Stop() })
	t.Cleanup(func() { g.Expect(engine.Stop()).To(Succeed()) })
	g.Expect(engine.Image(t.Context(), containerImage, conformance.Workload(t))).To(Succeed())
	api, err := engine.Client()
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = api.Close() })
	return engine, api
}

// runContainer is the equivalent of docker run -d.
func runContainer(ctx context.Context, api *dockerclient.Client, name string) error {
	made, err := api.ContainerCreate(ctx, dockerclient.ContainerCreateOptions{
		Name: name, Config: &container.Config{Image: containerImage, Cmd: []string{"sleep"}}, HostConfig: &container.HostConfig{NetworkMode: "none"},
	})
	if err != nil {
		return err
	}
	_, err = api.ContainerStart(ctx, made.ID, dockerclient.ContainerStartOptions{})
	return err
}

// openContainers runs containers in a separate engine.
func openContainers(t *testing.T, n int) *docker.Runtime {
	t.Helper()
	g := NewWithT(t)
	engine, api := startEngine(t)
	inParallel(t, n, 4, func(i int) error { return runContainer(t.Context(), api, fmt.Sprintf("claude-%03d", i)) })
	opened, err := docker.New(docker.Options{Host: engine.Host, Dir: t.TempDir()})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { g.Expect(opened.Close()).To(Succeed()) })
	return opened
}

// deleteDiscovered deletes the discovery and its Instances. It also removes their finalizers, because no manager runs to do so.
func deleteDiscovered(t *testing.T, d *v1alpha1.InstanceDiscovery) {
	t.Helper()
	g := NewWithT(t)
	ctx := backgroundContext
	g.Expect(k8s.Delete(ctx, d)).To(Succeed())
	var list v1alpha1.InstanceList
	g.Expect(k8s.List(ctx, &list, client.MatchingLabels{v1alpha1.LabelDiscoveredBy: d.Name})).To(Succeed())
	inParallel(t, len(list.Items), 16, func(i int) error {
		release := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
		if err := k8s.Patch(ctx, &list.Items[i], release); err != nil {
			return err
		}
		return k8s.Delete(ctx, &list.Items[i])
	})
}
