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
)

// den is a tmux server of one row, and a manager that runs Instances there; and containers, if the row wants some.
type den struct {
	socket string
	tmux   *tmux.Runtime
	docker *docker.Runtime
	engine *dockertest.Engine
	api    *client.Client
	end    func()
}

// image is what containers of a row are made of: a workload and nothing else.
const image = "berth-race:latest"

// inDen replaces the manager of the row by one with tmux. The row calls end when it has cleaned up.
func inDen(engine *dockertest.Engine) *den {
	GinkgoHelper()
	needTmux()
	d := &den{socket: "berth-" + y.namespace, engine: engine}
	y.stop()
	y.stop = nil
	var err error
	d.tmux, err = tmux.New(y.host, tmux.Options{Dir: filepath.Join(y.stateDir, "tmux"), Shim: y.shim, Socket: d.socket})
	Expect(err).NotTo(HaveOccurred())
	members := []runtime.Backend{{Type: v1alpha1.RuntimeTmux, Runtime: d.tmux}}
	if fault != nil && fault.terminals != nil {
		members[0].Runtime = fault.terminals(d)
	}
	if engine != nil {
		d.docker, err = docker.New(docker.Options{Host: engine.Host, Dir: filepath.Join(y.stateDir, "docker")})
		Expect(err).NotTo(HaveOccurred())
		d.api, err = engine.Client()
		Expect(err).NotTo(HaveOccurred())
		members = append(members, runtime.Backend{Type: v1alpha1.RuntimeDocker, Runtime: d.docker})
	}
	all := runtime.NewRegistry(whole{y.rt}, logr.Discard(), members...)
	leave := lead(fault.managers(config), all)
	d.end = func() {
		leave()
		d.tmux.Close()
		if d.docker != nil {
			_ = d.api.Close()
			_ = d.docker.Close()
		}
		d.killServer()
		y.languages.Close()
		_ = y.host.Close()
	}
	return d
}

// ask has the tmux server of the row do something.
func (d *den) ask(args ...string) (string, error) {
	cmd := exec.Command("tmux", append([]string{"-L", d.socket, "-f", os.DevNull}, args...)...)
	cmd.Dir = "/"
	answer, err := cmd.CombinedOutput()
	return string(answer), err
}

func (d *den) killServer() {
	_, _ = d.ask("kill-server") // fails when its last session has gone already
	Eventually(func() error {
		_, err := d.ask("list-sessions")
		return err
	}).ShouldNot(Succeed(), "the tmux server ends")
	if !CurrentSpecReport().Failed() {
		Eventually(workloads).WithArguments("").Should(BeEmpty(), "what ran in sessions ends with them")
	}
}

// open makes sessions in which a workload runs that is called as the session.
func (d *den) open(names ...string) {
	GinkgoHelper()
	for _, name := range names {
		answer, err := d.ask(append([]string{"new-session", "-d", "-s", name}, command(name)...)...)
		Expect(err).NotTo(HaveOccurred(), answer)
	}
	Eventually(func() int { return len(workloads("")) }).Should(BeNumerically(">=", len(names)))
}

// marks gives, for each session, the UID that it is marked with.
func (d *den) marks(ctx context.Context) map[string]string {
	GinkgoHelper()
	sessions, err := d.tmux.Sessions(ctx, d.socket)
	Expect(err).NotTo(HaveOccurred())
	marks := map[string]string{}
	for _, s := range sessions {
		marks[s.Name] = string(s.UID)
	}
	return marks
}

// discovery looks through the sessions of the row.
func (d *den) discovery(namespace, name, prefix string) *v1alpha1.InstanceDiscovery {
	o := &v1alpha1.InstanceDiscovery{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	o.Spec.IntervalSeconds = ptr.To[int32](5)
	o.Spec.Sources = []v1alpha1.DiscoverySource{{Name: "tmux", Type: v1alpha1.RuntimeTmux, Tmux: &v1alpha1.TmuxSource{Socket: d.socket, Prefix: prefix}}}
	return o
}

// adopts gives an Instance for a session that has to be there.
func (d *den) adopts(name, session string) *v1alpha1.Instance {
	i := instance(name)
	i.Spec.Adoption = v1alpha1.AdoptionRequired
	i.Spec.Runtime = &v1alpha1.InstanceRuntime{Type: v1alpha1.RuntimeTmux, Tmux: &v1alpha1.TmuxRuntime{Session: session, Socket: d.socket}}
	return i
}

// looks waits until a discovery has looked, and what it says is so.
func looks(ctx context.Context, d *v1alpha1.InstanceDiscovery, what string, be func(v1alpha1.DiscoveryTotals) bool) {
	GinkgoHelper()
	Eventually(ctx, func() (bool, error) {
		fresh := &v1alpha1.InstanceDiscovery{}
		err := k8s.Get(ctx, kube.ObjectKeyFromObject(d), fresh)
		*d = *fresh
		return err == nil && d.Status.ObservedGeneration == d.Generation && be(d.Status.Totals), err
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

// instanceOf gives the Instance of a session or container by the name that people know, and its runtime.
func instanceOf(ctx context.Context, kind v1alpha1.RuntimeType, displayName string) *v1alpha1.Instance {
	GinkgoHelper()
	all := instancesIn(ctx, y.namespace)
	at := slices.IndexFunc(all, func(i v1alpha1.Instance) bool {
		return i.Spec.Runtime != nil && i.Spec.Runtime.Type == kind && i.Spec.DisplayName == displayName
	})
	Expect(at).To(BeNumerically(">=", 0), "%s %s has an Instance", kind, displayName)
	return &all[at]
}

// clearFound deletes discoveries and Instances of the row, and waits until they are gone: the sessions stay.
func clearFound(ctx context.Context, namespaces ...string) {
	GinkgoHelper()
	Eventually(ctx, func(g Gomega) { // a discovery may be creating just now
		for _, namespace := range namespaces {
			for _, object := range []kube.Object{&v1alpha1.InstanceDiscovery{}, &v1alpha1.Instance{}} {
				g.Expect(k8s.DeleteAllOf(ctx, object, kube.InNamespace(namespace))).To(Succeed())
			}
		}
		g.Expect(instancesIn(ctx, namespaces...)).To(BeEmpty())
	}).Should(Succeed())
}

// isReady says whether it is Ready, and why.
func isReady(object *v1alpha1.Instance) string {
	ready := meta.FindStatusCondition(object.Status.Conditions, v1alpha1.ConditionReady)
	if ready == nil {
		return ""
	}
	return string(ready.Status) + " " + ready.Reason
}

// box makes a container that runs the workload under the name.
func (d *den) box(ctx context.Context, name string) (id string) {
	GinkgoHelper()
	made, err := d.api.ContainerCreate(ctx, client.ContainerCreateOptions{
		Name: name, Config: &container.Config{Image: image, Cmd: []string{"-dir", "/", "-name", name}},
		HostConfig: &container.HostConfig{NetworkMode: "none"},
	})
	Expect(err).NotTo(HaveOccurred())
	_, err = d.api.ContainerStart(ctx, made.ID, client.ContainerStartOptions{})
	Expect(err).NotTo(HaveOccurred())
	return made.ID
}

func (d *den) unbox(ctx context.Context, id string) {
	GinkgoHelper()
	_, err := d.api.ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: true})
	Expect(err).NotTo(HaveOccurred())
}

// startEngine starts a Docker Engine, or leaves the row out.
func startEngine(ctx context.Context) *dockertest.Engine {
	GinkgoHelper()
	engine, err := dockertest.Start()
	if errors.Is(err, dockertest.ErrUnavailable) {
		leaveOut(err)
	}
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { Expect(engine.Stop()).To(Succeed()) })
	Expect(engine.Image(ctx, image, filepath.Join(programs, "workload"))).To(Succeed())
	return engine
}

// leaveOut ends a row that needs what this machine does not have, and says which and why. In CI everything has to be there.
func leaveOut(why error) {
	GinkgoHelper()
	if os.Getenv("CI") != "" {
		Fail(why.Error())
	}
	fmt.Printf("\n%s is left out: %v\n", strings.Fields(CurrentSpecReport().LeafNodeText)[0], why)
	Skip(why.Error())
}

// needTmux leaves the row out where there is no tmux.
func needTmux() {
	GinkgoHelper()
	if _, err := exec.LookPath("tmux"); err != nil {
		leaveOut(err)
	}
}
