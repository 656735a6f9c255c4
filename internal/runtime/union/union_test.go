// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package union

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/api/v1alpha1"
	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type parts struct {
	*GomegaWithT
	base  *fake.Sockets
	tmux  *fake.Sessions
	union *Union
}

func newParts(t *testing.T) parts {
	base := fake.WithSockets(fake.New(t.Context(), clock.RealClock{}))
	tmux := fake.WithSessions(fake.New(t.Context(), clock.RealClock{}))
	u := New(base, logr.Discard(), Member{Type: v1alpha1.RuntimeTmux, Runtime: tmux}, Member{Type: v1alpha1.RuntimePod, Missing: "there is no cluster"})
	t.Cleanup(u.Close)
	return parts{NewWithT(t), base, tmux, u}
}

func (p parts) start(on runtime.Runtime, uid types.UID) {
	p.Expect(on.Start(context.Background(), runtime.Process{UID: uid, Incarnation: 1, Command: []string{"agent"}, Config: []byte(`{}`)})).To(Succeed())
}

func TestWhoIsAskedByType(t *testing.T) {
	p := newParts(t)
	p.Expect(p.union.For(v1alpha1.RuntimeTmux)).To(BeIdenticalTo(p.tmux))
	for _, kind := range []v1alpha1.RuntimeType{"", v1alpha1.RuntimeHost} {
		p.Expect(p.union.For(kind)).To(BeIdenticalTo(p.base), string(kind))
	}
	for kind, why := range map[v1alpha1.RuntimeType]string{
		v1alpha1.RuntimePod: "there is no cluster", v1alpha1.RuntimeDocker: "This manager was started without the runtime Docker.",
	} {
		missing, is := p.union.For(kind).(runtime.Disabled)
		p.Expect(is).To(BeTrue(), "nothing that wants another runtime is started in the base")
		p.Expect(missing.Disabled()).To(Equal(why))
		p.Expect(p.union.For(kind).Start(t.Context(), runtime.Process{UID: "x", Incarnation: 1, Command: []string{"x"}})).NotTo(Succeed())
		p.Expect(p.base.Live("x")).To(BeEmpty())
	}
}

func TestWhatIsDoneIsDoneWhereItRuns(t *testing.T) {
	p, ctx := newParts(t), t.Context()
	p.start(p.union, "web")
	p.start(p.tmux, "agent")
	p.Expect(p.base.Live("web")).To(HaveLen(1), "what chooses nothing runs in the base")

	list, err := p.union.List(ctx)
	p.Expect(err).NotTo(HaveOccurred())
	p.Expect(list).To(ConsistOf(HaveField("UID", "web"), HaveField("UID", "agent")))

	p.Expect(p.union.Type(ctx, "agent", []byte("hello"))).To(Succeed())
	p.Expect(p.tmux.Typed("agent")).To(Equal("hello"))
	p.Expect(p.union.Type(ctx, "web", nil)).To(MatchError(runtime.ErrNoTerminal))
	p.Expect(p.union.Type(ctx, "nobody", nil)).To(MatchError(runtime.ErrNotFound))

	p.Expect(p.union.Kill(ctx, "agent", 1)).To(Succeed())
	p.Expect(p.tmux.Live("agent")).To(BeEmpty())
	p.Expect(p.union.Forget(ctx, "agent")).To(Succeed())
	p.Expect(p.union.Observe(ctx, "agent")).To(BeEmpty())
	p.Expect(p.base.Live("web")).To(HaveLen(1))
	p.Expect(p.union.Stop(ctx, "nobody", 1)).To(Succeed(), "nothing there is success")
}

func TestOneThatDoesNotAnswerHidesOnlyItsOwn(t *testing.T) {
	p, ctx, down := newParts(t), t.Context(), errors.New("the engine is down")
	p.start(p.base, "web")
	p.start(p.tmux, "agent")

	p.tmux.Fail(fake.Observe, down)
	p.Expect(p.union.Observe(ctx, "web")).To(HaveLen(1))
	p.tmux.Fail(fake.Observe, down)
	_, err := p.union.Observe(ctx, "agent")
	p.Expect(err).To(MatchError(down), "it may be there: nobody must take it for gone")
	p.tmux.Fail(fake.Observe, down)
	p.Expect(p.union.Forget(ctx, "agent")).To(MatchError(down))
	p.tmux.Fail(fake.List, down)
	p.Expect(p.union.List(ctx)).To(HaveLen(1))
}

func TestEventsOfAll(t *testing.T) {
	p := newParts(t)
	p.start(p.base, "web")
	p.start(p.tmux, "agent")
	seen := map[types.UID]bool{}
	p.Eventually(func() map[types.UID]bool {
		select {
		case uid := <-p.union.Events():
			seen[uid] = true
		case <-time.After(10 * time.Millisecond):
		}
		return seen
	}).WithTimeout(time.Minute).Should(HaveLen(2))
}

// made has something that was made for a UID and never ran: it is listed, and there is nothing to observe.
type made struct {
	*fake.Sessions
	forgotten []types.UID
}

func (*made) Observe(context.Context, types.UID) ([]facts.Incarnation, error) { return nil, nil }

func (m *made) Forget(_ context.Context, uid types.UID) error {
	m.forgotten = append(m.forgotten, uid)
	return nil
}

func TestWhatNeverRanIsForgottenToo(t *testing.T) {
	p := newParts(t)
	backend := &made{Sessions: p.tmux}
	u := New(p.base, logr.Discard(), Member{Type: v1alpha1.RuntimeTmux, Runtime: backend})
	defer u.Close()
	p.Expect(u.Forget(t.Context(), "half")).To(Succeed())
	p.Expect(backend.forgotten).To(ConsistOf(types.UID("half")))
}
