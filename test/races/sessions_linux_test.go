// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package races

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	kube "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/docker"
	"github.com/berth-dev/berth/internal/runtime/docker/dockertest"
	"github.com/berth-dev/berth/internal/runtime/tmux"
	"github.com/berth-dev/berth/test/need"
)

// sessionEnv is the tmux server of one row, with a manager that runs Instances there, and with containers if the row needs them.
type sessionEnv struct {
	socket string
	tmux   *tmux.Runtime
	docker *docker.Runtime
	engine *dockertest.Engine
	api    *client.Client
	end    func()
}

// image is the image of the containers; it contains the workload and nothing else.
const image = "berth-race:latest"

// newSessionEnv replaces the manager of the row with one that supports tmux. The row has to call end after its clean-up.
func newSessionEnv(engine *dockertest.Engine) *sessionEnv {
	GinkgoHelper()
	requireTmux()
	d := &sessionEnv{socket: "berth-" + env.namespace, engine: engine}
	env.stop()
	env.stop = nil
	var err error
	d.tmux, err = tmux.New(env.host, tmux.Options{Dir: filepath.Join(env.stateDir, "tmux"), Shim: env.shim, Socket: d.socket})
	Expect(err).NotTo(HaveOccurred())
	members := []runtime.Backend{{Type: v1alpha1.RuntimeTmux, Runtime: d.tmux}}
	if fault != nil && fault.tmuxRuntime != nil {
		members[0].Runtime = fault.tmuxRuntime(d)
	}
	if engine != nil {
		d.docker, err = docker.New(docker.Options{Host: engine.Host, Dir: filepath.Join(env.stateDir, "docker")})
		Expect(err).NotTo(HaveOccurred())
		d.api, err = engine.Client()
		Expect(err).NotTo(HaveOccurred())
		members = append(members, runtime.Backend{Type: v1alpha1.RuntimeDocker, Runtime: d.docker})
	}
	all := runtime.NewRegistry(withOwnCapabilities{env.rt}, logr.Discard(), members...)
	leave := runLeader(fault.managers(config), all)
	d.end = func() {
		leave()
		d.tmux.Close()
		if d.docker != nil {
			_ = d.api.Close()
			_ = d.docker.Close()
		}
		d.killServer()
		env.languages.Close()
		_ = env.host.Close()
	}
	return d
}

// runTmux runs a command on the tmux server of the row.
func (e *sessionEnv) runTmux(args ...string) (string, error) {
	cmd := exec.Command("tmux", append([]string{"-L", e.socket, "-f", os.DevNull}, args...)...)
	cmd.Dir = "/"
	answer, err := cmd.CombinedOutput()
	return string(answer), err
}

func (e *sessionEnv) killServer() {
	_, _ = e.runTmux("kill-server") // fails if the server has exited with its last session
	Eventually(func() error {
		_, err := e.runTmux("list-sessions")
		return err
	}).ShouldNot(Succeed(), "the tmux server exits")
	if !CurrentSpecReport().Failed() {
		Eventually(workloadPIDs).WithArguments("").Should(BeEmpty(), "the processes in sessions end with them")
	}
}

// openSessions creates sessions, each with a workload of the same name.
func (e *sessionEnv) openSessions(names ...string) {
	GinkgoHelper()
	for _, name := range names {
		answer, err := e.runTmux(append([]string{"new-session", "-d", "-s", name}, workloadCommand(name)...)...)
		Expect(err).NotTo(HaveOccurred(), answer)
	}
	Eventually(func() int { return len(workloadPIDs("")) }).Should(BeNumerically(">=", len(names)))
}

// sessionMarks returns the UID with which each session is marked.
func (e *sessionEnv) sessionMarks(ctx context.Context) map[string]string {
	GinkgoHelper()
	sessions, err := e.tmux.Sessions(ctx, e.socket)
	Expect(err).NotTo(HaveOccurred())
	marks := map[string]string{}
	for _, s := range sessions {
		marks[s.Name] = string(s.UID)
	}
	return marks
}

// newDiscovery returns a discovery of the sessions of the row.
func (e *sessionEnv) newDiscovery(namespace, name, prefix string) *v1alpha1.InstanceDiscovery {
	o := &v1alpha1.InstanceDiscovery{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	o.Spec.IntervalSeconds = ptr.To[int32](5)
	o.Spec.Sources = []v1alpha1.DiscoverySource{{Name: "tmux", Type: v1alpha1.RuntimeTmux, Tmux: &v1alpha1.TmuxSource{Socket: e.socket, Prefix: prefix}}}
	return o
}

// newAdoptingInstance returns an Instance that adopts an existing session.
func (e *sessionEnv) newAdoptingInstance(name, session string) *v1alpha1.Instance {
	i := newInstance(name)
	i.Spec.Adoption = v1alpha1.AdoptionRequired
	i.Spec.Runtime = &v1alpha1.InstanceRuntime{Type: v1alpha1.RuntimeTmux, Tmux: &v1alpha1.TmuxRuntime{Session: session, Socket: e.socket}}
	return i
}

// waitForDiscovery waits until a discovery has run and condition returns true for its totals.
func waitForDiscovery(ctx context.Context, d *v1alpha1.InstanceDiscovery, what string, condition func(v1alpha1.DiscoveryTotals) bool) {
	GinkgoHelper()
	Eventually(ctx, func() (bool, error) {
		fresh := &v1alpha1.InstanceDiscovery{}
		err := k8s.Get(ctx, kube.ObjectKeyFromObject(d), fresh)
		*d = *fresh
		return err == nil && d.Status.ObservedGeneration == d.Generation && condition(d.Status.Totals), err
	}).Should(BeTrue(), func() string { return fmt.Sprintf("%s %s: %+v", d.Name, what, d.Status) })
}

func instancesIn(ctx context.Context, namespaces ...string) []v1alpha1.Instance {
	GinkgoHelper()
	var all []v1alpha1.Instance
	for _, namespace := range namespaces {
		var list v1alpha1.InstanceList
		Expect(k8s.List(ctx, &list, kube.InNamespace(namespace))).To(Succeed())
		all = append(all, list.Items...)
	}
	return all
}

// instanceOf returns the Instance of a session or container with that runtime and display name.
func instanceOf(ctx context.Context, kind v1alpha1.RuntimeType, displayName string) *v1alpha1.Instance {
	GinkgoHelper()
	all := instancesIn(ctx, env.namespace)
	at := slices.IndexFunc(all, func(i v1alpha1.Instance) bool {
		return i.Spec.Runtime != nil && i.Spec.Runtime.Type == kind && i.Spec.DisplayName == displayName
	})
	Expect(at).To(BeNumerically(">=", 0), "%s %s has an Instance", kind, displayName)
	return &all[at]
}

// deleteDiscovered deletes the discoveries and Instances of the row, and waits until no Instance exists any more. The sessions remain.
func deleteDiscovered(ctx context.Context, namespaces ...string) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) { // a discovery may be creating an Instance at this moment
		for _, namespace := range namespaces {
			for _, object := range []kube.Object{&v1alpha1.InstanceDiscovery{}, &v1alpha1.Instance{}} {
				g.Expect(k8s.DeleteAllOf(ctx, object, kube.InNamespace(namespace))).To(Succeed())
			}
		}
		g.Expect(instancesIn(ctx, namespaces...)).To(BeEmpty())
	}).Should(Succeed())
}

// readyCondition returns the status and the reason of Ready.
func readyCondition(object *v1alpha1.Instance) string {
	ready := meta.FindStatusCondition(object.Status.Conditions, v1alpha1.ConditionReady)
	if ready == nil {
		return ""
	}
	return string(ready.Status) + " " + ready.Reason
}

// startContainer starts a container that runs the workload under that name.
func (e *sessionEnv) startContainer(ctx context.Context, name string) (id string) {
	GinkgoHelper()
	made, err := e.api.ContainerCreate(ctx, client.ContainerCreateOptions{
		Name: name, Config: &container.Config{Image: image, Cmd: []string{"-dir", "/", "-name", name}},
		HostConfig: &container.HostConfig{NetworkMode: "none"},
	})
	Expect(err).NotTo(HaveOccurred())
	_, err = e.api.ContainerStart(ctx, made.ID, client.ContainerStartOptions{})
	Expect(err).NotTo(HaveOccurred())
	return made.ID
}

func (e *sessionEnv) removeContainer(ctx context.Context, id string) {
	GinkgoHelper()
	_, err := e.api.ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: true})
	Expect(err).NotTo(HaveOccurred())
}

// startEngine starts a Docker Engine, or skips the row.
func startEngine(ctx context.Context) *dockertest.Engine {
	GinkgoHelper()
	engine, err := dockertest.Start()
	if errors.Is(err, dockertest.ErrUnavailable) {
		skipRow(err)
	}
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { Expect(engine.Stop()).To(Succeed()) })
	Expect(engine.Image(ctx, image, filepath.Join(programs, "workload"))).To(Succeed())
	return engine
}

// skipRow skips a row if why is not nil: this machine lacks a requirement of the row. It prints the row and the cause.
func skipRow(why error) {
	GinkgoHelper()
	if why != nil {
		fmt.Printf("\n%s needs: %v\n", strings.Fields(CurrentSpecReport().LeafNodeText)[0], why)
	}
	need.Available(GinkgoT(), why)
}

// requireTmux skips the row if tmux is not installed.
func requireTmux() {
	GinkgoHelper()
	skipRow(need.Missing("tmux"))
}
