// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package runtime_test

import (
	"context"
	"errors"
	"testing"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/fake"
)

type backends struct {
	*GomegaWithT
	base     *fake.Sockets
	tmux     *fake.Sessions
	registry *runtime.Registry
}

func newBackends(t *testing.T) backends {
	base := fake.WithSockets(fake.New(t.Context(), clock.RealClock{}))
	tmux := fake.WithSessions(fake.New(t.Context(), clock.RealClock{}))
	registry := runtime.NewRegistry(base, logr.Discard(), runtime.Backend{Type: v1alpha1.RuntimeTmux, Runtime: tmux},
		runtime.Backend{Type: v1alpha1.RuntimePod, Missing: "there is no cluster"})
	return backends{NewWithT(t), base, tmux, registry}
}

func (b backends) start(on runtime.Runtime, uid types.UID) {
	b.Expect(on.Start(context.Background(), runtime.Process{UID: uid, Incarnation: 1, Command: []string{"agent"}, Config: []byte(`{}`)})).To(Succeed())
}

func TestRegistry_ReturnsBackendForType(t *testing.T) {
	b := newBackends(t)
	b.Expect(b.registry.For(v1alpha1.RuntimeTmux)).To(BeIdenticalTo(b.tmux))
	b.Expect(b.registry.Has(v1alpha1.RuntimeTmux)).To(BeTrue())
	for _, kind := range []v1alpha1.RuntimeType{"", v1alpha1.RuntimeHost} {
		b.Expect(b.registry.For(kind)).To(BeIdenticalTo(b.base), string(kind))
	}
	b.start(b.base, "web")
	for kind, why := range map[v1alpha1.RuntimeType]string{
		v1alpha1.RuntimePod: "there is no cluster", v1alpha1.RuntimeDocker: "This manager does not serve the runtime Docker.",
	} {
		missing := b.registry.For(kind)
		b.Expect(b.registry.Has(kind)).To(BeFalse())
		b.Expect(missing.Capabilities()).To(Equal(runtime.Capabilities{Disabled: why}))
		b.Expect(missing.Start(t.Context(), runtime.Process{UID: "x", Incarnation: 1, Command: []string{"x"}})).To(MatchError(why))
		b.Expect(b.base.Live("x")).To(BeEmpty(), "the base starts no object that names another runtime")
		b.Expect(missing.Observe(t.Context(), "web")).To(HaveLen(1), "a process of the base can still be stopped")
	}
	none := runtime.NewRegistry(runtime.NoRuntime{Reason: "no runtimes"}, logr.Discard())
	b.Expect(none.For(v1alpha1.RuntimeTmux).Capabilities().Disabled).To(Equal("no runtimes"))
}

func TestRegistry_FindsAndForgetsAcrossBackends(t *testing.T) {
	b, ctx := newBackends(t), t.Context()
	b.start(b.base, "web")
	b.start(b.tmux, "agent")
	list, err := b.registry.List(ctx)
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(list).To(ConsistOf(HaveField("UID", "web"), HaveField("UID", "agent")))
	b.Expect(b.registry.Find(ctx, "agent")).To(HaveExactElements(BeIdenticalTo(b.tmux)))
	b.Expect(b.registry.Find(ctx, "web")).To(HaveExactElements(BeIdenticalTo(b.base)))
	_, err = b.registry.Find(ctx, "nobody")
	b.Expect(err).To(MatchError(runtime.ErrNotFound))

	b.Expect(b.tmux.Kill(ctx, "agent", 1)).To(Succeed())
	b.Expect(b.registry.Forget(ctx, "agent")).To(Succeed())
	b.Expect(b.tmux.Known()).To(BeEmpty())
	b.Expect(b.base.Live("web")).To(HaveLen(1))
	b.Expect(b.registry.Forget(ctx, "nobody")).To(Succeed())
}

func TestRegistry_ReportsErrorOfUnavailableBackend(t *testing.T) {
	b, ctx, down := newBackends(t), t.Context(), errors.New("the engine is down")
	b.start(b.base, "web")
	b.start(b.tmux, "agent")

	b.tmux.Fail(fake.Observe, down)
	b.Expect(b.registry.Find(ctx, "web")).To(HaveExactElements(BeIdenticalTo(b.base)))
	b.tmux.Fail(fake.Observe, down)
	_, err := b.registry.Find(ctx, "agent")
	b.Expect(err).To(MatchError(down), "the backend may have the process, so it is not reported as absent")
	b.tmux.Fail(fake.Observe, down)
	b.Expect(b.registry.Forget(ctx, "agent")).To(MatchError(down))
	b.tmux.Fail(fake.List, down)
	b.Expect(b.registry.List(ctx)).To(HaveLen(1))
}

// podBackend is a backend whose processes are Pods.
type podBackend struct{ *fake.Sessions }

func (p podBackend) List(ctx context.Context) ([]facts.Incarnation, error) {
	return placed(p.Sessions.List(ctx))
}

func (p podBackend) Observe(ctx context.Context, uid types.UID) ([]facts.Incarnation, error) {
	return placed(p.Sessions.Observe(ctx, uid))
}

func placed(found []facts.Incarnation, err error) ([]facts.Incarnation, error) {
	for i := range found {
		found[i].Namespace = "team"
	}
	return found, err
}

// Any user can create a Pod with the UID of an object as its label.
func TestRegistry_PodDoesNotHideProcess(t *testing.T) {
	b, ctx := newBackends(t), t.Context()
	pods := podBackend{b.tmux}
	registry := runtime.NewRegistry(b.base, logr.Discard(), runtime.Backend{Type: v1alpha1.RuntimePod, Runtime: pods})
	b.start(b.base, "web")
	b.start(b.tmux, "web")
	b.Expect(registry.List(ctx)).To(ConsistOf(HaveField("Namespace", ""), HaveField("Namespace", "team")))
	b.Expect(registry.Find(ctx, "web")).To(HaveExactElements(BeIdenticalTo(b.base), Equal(pods)))
	b.Expect(b.base.Kill(ctx, "web", 1)).To(Succeed())
	b.Expect(b.tmux.Kill(ctx, "web", 1)).To(Succeed())
	b.Expect(registry.Forget(ctx, "web")).To(Succeed())
	b.Expect(b.base.Known()).To(BeEmpty())
	b.Expect(b.tmux.Known()).To(BeEmpty())
}

// preparedBackend is a backend with a prepared start that never happened, so there is nothing to observe.
type preparedBackend struct {
	*fake.Sessions
	forgotten []types.UID
}

func (*preparedBackend) Observe(context.Context, types.UID) ([]facts.Incarnation, error) {
	return nil, nil
}

func (p *preparedBackend) Forget(_ context.Context, uid types.UID) error {
	p.forgotten = append(p.forgotten, uid)
	return nil
}

func TestRegistry_ForgetsPreparedStart(t *testing.T) {
	b := newBackends(t)
	backend := &preparedBackend{Sessions: b.tmux}
	registry := runtime.NewRegistry(b.base, logr.Discard(), runtime.Backend{Type: v1alpha1.RuntimeTmux, Runtime: backend})
	b.Expect(registry.Forget(t.Context(), "half")).To(Succeed())
	b.Expect(backend.forgotten).To(ConsistOf(types.UID("half")))
}
