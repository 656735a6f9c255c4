// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-dev/berth/internal/lifecycle"
)

// observerKind is a kind that implements ActionObserver.
type observerKind struct {
	*testKind
	decided func(Object, lifecycle.Step)
}

func (w *observerKind) BeforeAction(_ context.Context, object, _ Object, step lifecycle.Step, _ bool) error {
	w.decided(object, step)
	return nil
}

func TestBeforeAction_ComesAfterTheWriteAndBeforeTheAction(t *testing.T) {
	b := newFixture(t, nil)
	b.kind.recordFirst = true
	var actions []lifecycle.Action
	b.r.Kind = &observerKind{testKind: b.kind, decided: func(object Object, step lifecycle.Step) {
		actions = append(actions, step.Action)
		b.Expect(b.object().Status.Incarnation).To(Equal(object.GetProcessStatus().Incarnation), "the status is already written")
		found, err := b.rt.Observe(t.Context(), testUID)
		b.Expect(err).NotTo(HaveOccurred())
		if step.Action == lifecycle.StartProcess {
			b.Expect(found).To(BeEmpty(), "the process is not started yet")
		}
	}}
	b.reconcile()
	b.Expect(actions).To(Equal([]lifecycle.Action{lifecycle.StartProcess}))
	found, err := b.rt.Observe(t.Context(), testUID)
	b.Expect(err).NotTo(HaveOccurred())
	b.Expect(found).To(HaveLen(1))
	b.reconcile()
	b.Expect(actions).To(HaveLen(2), "once per reconcile")
}

func TestBeforeAction_ComesBeforeAPreStart(t *testing.T) {
	b := newFixture(t, nil)
	preStarts := 0
	b.r.Kind = &observerKind{testKind: b.kind, decided: func(object Object, step lifecycle.Step) {
		if !step.PreStart {
			return
		}
		preStarts++
		b.Expect(object.GetProcessStatus().Incarnation).To(Equal(step.Incarnation-1), "the start is not recorded yet")
		b.Expect(b.rt.Live(testUID)).To(BeEmpty(), "the process is not started yet")
	}}
	b.reconcile()
	b.reconcile()
	b.crash()
	b.reconcile()
	b.Expect(preStarts).To(Equal(2), "the first start and the restart")
	b.Expect(b.rt.Live(testUID)).To(Equal([]int64{2}))
}

func TestBeforeAction_IsNotCalledWhenTheWriteFails(t *testing.T) {
	b := newFixture(t, nil)
	b.kind.recordFirst = true
	calls := 0
	b.r.Kind = &observerKind{testKind: b.kind, decided: func(Object, lifecycle.Step) { calls++ }}
	b.intercept = func(write int) error {
		if write < 2 { // the first write adds the finalizer
			return nil
		}
		return apierrors.NewConflict(schema.GroupResource{Resource: "instances"}, testKey.Name, nil)
	}
	b.reconcile()
	b.Expect(b.writes).To(Equal(2))
	b.Expect(calls).To(BeZero())
}
