// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/manager"
	"github.com/berth-dev/berth/test/testenv"
)

// recreating is a client that deletes and recreates an object once: before its first write or, if afterWrite is true, after it.
type recreating struct {
	api        client.WithWatch
	object     client.Object // as it is created
	afterWrite bool
	uid        types.UID // of the new object; empty until the object was recreated
}

func (r *recreating) recreate(ctx context.Context) error {
	if r.uid != "" {
		return nil
	}
	if err := r.api.Delete(ctx, r.object.DeepCopyObject().(client.Object)); err != nil {
		return err
	}
	again := r.object.DeepCopyObject().(client.Object)
	err := r.api.Create(ctx, again)
	r.uid = again.GetUID()
	return err
}

// around calls write before or after the recreation.
func (r *recreating) around(ctx context.Context, write func() error) error {
	if !r.afterWrite {
		if err := r.recreate(ctx); err != nil {
			return err
		}
	}
	if err := write(); err != nil || !r.afterWrite {
		return err
	}
	return r.recreate(ctx)
}

func (r *recreating) client() client.WithWatch {
	return interceptor.NewClient(r.api, interceptor.Funcs{
		Patch: func(ctx context.Context, api client.WithWatch, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
			return r.around(ctx, func() error { return api.Patch(ctx, object, patch, opts...) })
		},
		Delete: func(ctx context.Context, api client.WithWatch, object client.Object, opts ...client.DeleteOption) error {
			return r.around(ctx, func() error { return api.Delete(ctx, object, opts...) })
		},
		Apply: func(ctx context.Context, api client.WithWatch, object runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			return r.around(ctx, func() error { return api.Apply(ctx, object, opts...) })
		},
		SubResourcePatch: func(ctx context.Context, api client.Client, sub string, object client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
			return r.around(ctx, func() error { return api.SubResource(sub).Patch(ctx, object, patch, opts...) })
		},
	})
}

// recreatable returns the objects of the test, by name.
func recreatable() map[string]client.Object {
	at := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "default", Name: name} }
	program := v1alpha1.ProcessTemplate{Command: []string{"work"}}
	server := &v1alpha1.DevServer{ObjectMeta: at("web")}
	server.Spec.Process = program
	stopped := &v1alpha1.DevServer{ObjectMeta: at("web")}
	stopped.Spec.Process, stopped.Spec.State = program, v1alpha1.StateStopped
	run := &v1alpha1.StrategyRun{ObjectMeta: at("once")}
	run.Spec.StrategyRef.Name = "s"
	strategy := &v1alpha1.Strategy{ObjectMeta: at("s")}
	strategy.Spec.Process = program
	discovery := &v1alpha1.InstanceDiscovery{ObjectMeta: at("found")}
	discovery.Spec.Sources = []v1alpha1.DiscoverySource{{Name: "tmux", Type: v1alpha1.RuntimeTmux}}
	plan := &v1alpha1.Plan{ObjectMeta: at("check")}
	plan.Spec.ActionRef.Name = "act"
	return map[string]client.Object{"server": server, "stopped": stopped, "run": run, "strategy": strategy, "discovery": discovery, "plan": plan}
}

// Each command and tool that changes an object which it has read or listed leaves a recreated object with the same name unchanged, and states that.
func TestChange_SparesRecreatedObject(t *testing.T) {
	g := NewWithT(t)
	environment := testenv.New(filepath.Join("..", ".."))
	config, err := environment.Start()
	g.Expect(err).NotTo(HaveOccurred(), "start an API server")
	t.Cleanup(func() { g.Expect(environment.Stop()).To(Succeed()) })
	for name, test := range map[string]struct {
		object  string
		command string         // the command, or the tool if it has arguments
		with    map[string]any // the arguments of a tool
	}{
		"berth stop --all":          {"server", "stop devservers --all", nil},
		"berth start --all":         {"stopped", "start devservers --all", nil},
		"berth start":               {"stopped", "start devserver/web", nil},
		"berth restart --all":       {"server", "restart devservers --all", nil},
		"berth delete --all":        {"server", "delete devservers --all", nil},
		"berth delete":              {"server", "delete devserver/web", nil},
		"berth stop of runs":        {"run", "stop strategyruns --all", nil},
		"berth stop of one run":     {"run", "stop strategyrun/once", nil},
		"berth reset --all":         {"strategy", "reset strategies --all", nil},
		"berth discover":            {"discovery", "discover --timeout 5s", nil},
		"berth plan cancel":         {"plan", "plan cancel check", nil},
		"the tool stop":             {"server", "stop", map[string]any{"name": "devserver/web"}},
		"the tool stop of a run":    {"run", "stop", map[string]any{"name": "strategyrun/once"}},
		"the tool start":            {"stopped", "start", map[string]any{"name": "devserver/web"}},
		"the tool restart":          {"server", "restart", map[string]any{"name": "devserver/web"}},
		"the tool delete":           {"server", "delete", map[string]any{"name": "devserver/web"}},
		"the tool apply":            {"server", "apply", map[string]any{"name": "devserver/web", "command": []string{"other"}, "force": true}},
		"the tool cancel of a plan": {"plan", "cancel", map[string]any{"name": "check"}},
	} {
		t.Run(name, func(t *testing.T) {
			expectSpared(t, config, recreatable()[test.object], func(f *fixture) (said string) {
				if test.with != nil {
					return newToolClient(t, f, mcpFlags{}).call(test.command, test.with, nil)
				}
				NewWithT(t).Expect(f.run(t.Context(), strings.Fields(test.command)...)).To(Equal(1))
				return f.err.String()
			})
		})
	}
	t.Run("berth down", func(t *testing.T) { expectStopNotRecorded(t, config) })
}

// A command that waits for the effect of its change does not wait for a recreated object, which the change does not affect.
func TestChange_DoesNotWaitForRecreatedObject(t *testing.T) {
	for name, test := range map[string]struct {
		command string
		code    int
		said    string
	}{
		"restart":               {"restart devserver/web --wait", 1, "devserver/web was deleted and recreated"},
		"stop":                  {"stop devservers --all --wait", 1, "devserver/web was deleted and recreated"},
		"delete":                {"delete devserver/web --wait", 0, "devserver/web deleted"},
		"wait for its deletion": {"wait devserver/web --for deleted", 0, "devserver/web deleted"},
		"wait for the name":     {"wait devserver/web --for condition=Ready=Unknown --timeout 5s", 0, "devserver/web condition=Ready=Unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			f := newFixture(web())
			r := &recreating{api: f.api, object: web(func(server *v1alpha1.DevServer) {
				server.UID, server.Status.Conditions = "uid-new", nil
			}), afterWrite: true}
			f.api = r.client()
			if strings.HasPrefix(test.command, "wait") {
				read := 0
				f.api = interceptor.NewClient(r.api, interceptor.Funcs{
					Get: func(ctx context.Context, api client.WithWatch, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
						if read++; read == 2 {
							if err := r.recreate(ctx); err != nil {
								return err
							}
						}
						return api.Get(ctx, key, object, opts...)
					},
				})
			}
			g.Expect(f.run(t.Context(), strings.Fields(test.command)...)).To(Equal(test.code), f.err.String())
			g.Expect(f.out.String() + f.err.String()).To(ContainSubstring(test.said))
		})
	}
}

// expectStopNotRecorded expects that berth down records a stop in the object that had the process, and not in a recreated one.
func expectStopNotRecorded(t *testing.T, config *rest.Config) {
	t.Helper()
	g := NewWithT(t)
	api, err := client.NewWithWatch(config, client.Options{Scheme: manager.Scheme()})
	g.Expect(err).NotTo(HaveOccurred())
	object := recreatable()["server"].(*v1alpha1.DevServer)
	r := &recreating{api: api, object: object.DeepCopy()}
	g.Expect(api.Create(t.Context(), object)).To(Succeed())
	t.Cleanup(func() { g.Expect(api.Delete(context.Background(), r.object)).To(Succeed()) })
	object.Status.Incarnation = 1
	stopper := &processStopper{api: r.client(), clock: clock.RealClock{}}
	g.Expect(stopper.record(t.Context(), object, 1, time.Second)).To(Succeed())
	now := &v1alpha1.DevServer{}
	g.Expect(api.Get(t.Context(), client.ObjectKeyFromObject(object), now)).To(Succeed())
	g.Expect(now.UID).To(Equal(r.uid))
	g.Expect(now.Status.Stopping).To(BeNil(), "nothing is recorded in the new object")

	now.Status.Incarnation = 1
	g.Expect(api.Status().Update(t.Context(), now)).To(Succeed())
	stale := now.DeepCopy()
	now.Spec.RestartToken = "a user changes the spec"
	g.Expect(api.Update(t.Context(), now)).To(Succeed())
	g.Expect(stopper.record(t.Context(), stale, 1, time.Second)).To(Succeed())
	g.Expect(api.Get(t.Context(), client.ObjectKeyFromObject(object), now)).To(Succeed())
	g.Expect(now.Status.Stopping).NotTo(BeNil(), "recorded after a conflict")
}

// expectSpared creates an object, calls change with a client that recreates the object before the first write, and expects that the new object is unchanged.
func expectSpared(t *testing.T, config *rest.Config, object client.Object, change func(*fixture) string) {
	t.Helper()
	g := NewWithT(t)
	api, err := client.NewWithWatch(config, client.Options{Scheme: manager.Scheme()})
	g.Expect(err).NotTo(HaveOccurred())
	r := &recreating{api: api, object: object}
	g.Expect(api.Create(t.Context(), object.DeepCopyObject().(client.Object))).To(Succeed())
	t.Cleanup(func() {
		g.Expect(api.Delete(context.Background(), object.DeepCopyObject().(client.Object))).To(Succeed())
	})
	f := newFixture()
	f.api = r.client()
	g.Expect(change(f)).To(ContainSubstring("was deleted and recreated"))
	now := object.DeepCopyObject().(client.Object)
	g.Expect(api.Get(t.Context(), client.ObjectKeyFromObject(object), now)).To(Succeed())
	g.Expect(r.uid).NotTo(BeEmpty(), "the object was recreated")
	g.Expect(now.GetUID()).To(Equal(r.uid))
	g.Expect(now.GetGeneration()).To(BeEquivalentTo(1), "the spec of the new object is unchanged")
}
