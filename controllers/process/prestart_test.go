// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// The API server first decides whether a deletion waits for finalizers, and then deletes. A finalizer that is added between these steps does not keep the
// object, so a successful claim does not show that the object still exists.
func TestPreStart_SkipsObjectDeletedDuringClaim(t *testing.T) {
	b := newFixture(t, nil)
	claims := b.r.Client
	b.r.Client = interceptor.NewClient(b.api, interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			if err := claims.Patch(ctx, o, p, opts...); err != nil {
				return err
			}
			gone := b.object()
			gone.Finalizers = nil
			b.Expect(c.Update(ctx, gone)).To(Succeed())
			return c.Delete(ctx, gone)
		},
	})
	b.Expect(b.reconcile().RequeueAfter).To(Equal(staleRequeue))
	b.Expect(b.rt.Known()).To(BeEmpty(), "no process starts for a deleted object")

	b = newFixture(t, nil)
	b.reconcile()
	b.Expect(b.rt.Live(testUID)).To(HaveLen(1), "the process of an existing object starts without a write of its status")
	b.Expect(b.writes).To(Equal(1), "the claim")
}

// A process must not use a port that only the memory of the manager contains, because after a crash of the manager another object could get this port.
func TestPreStart_RequiresWrittenStatusOfKind(t *testing.T) {
	b := newFixture(t, nil)
	b.kind.port = "8080"
	b.intercept = func(int) error {
		b.Expect(b.rt.Live(testUID)).To(BeEmpty(), "the port is written before the start")
		return nil
	}
	b.reconcile()
	b.intercept = nil
	b.reconcile()
	b.Expect(b.object().Status).To(And(HaveField("AttachCommand", "8080"), HaveField("ReservedIncarnation", int64(2))))

	b.crash()
	writes := b.writes
	b.reconcile()
	b.Expect(b.rt.Live(testUID)).To(Equal([]int64{2}))
	b.Expect(b.writes).To(Equal(writes), "the status already contains the port")
	b.reconcile()
	b.reconcile()
	b.Expect(b.kind.stops).To(Equal(1), "ObserveStopped is called for the first start, but not for a pre-start, which writes no status, and not while an incarnation runs")

	for _, change := range []func(){func() { b.kind.port = "8081" }, func() { b.kind.recordFirst = true }} {
		change()
		b.update(func(i *v1alpha1.Instance) { i.Spec.ResetToken += "+" })
		b.reconcile()
		b.crash()
		was := b.object().Status.Incarnation
		b.reconcile()
		b.Expect(b.object().Status).To(And(HaveField("AttachCommand", "8081"), HaveField("Incarnation", was+1)), "written before the start")
		b.reconcile()
	}
}

// resolverKind is a kind whose process spec comes from another object.
type resolverKind struct {
	*testKind
	spec v1alpha1.ProcessSpec
}

func (k *resolverKind) ResolveSpec(context.Context, Object) (*v1alpha1.ProcessSpec, error) {
	return k.spec.DeepCopy(), nil
}

// Another object can change between a pre-start and its record, and the version of the object does not show that.
func TestPreStart_IsNotForSpecOfAnotherObject(t *testing.T) {
	b := newFixture(t, nil)
	b.r.Kind = &resolverKind{testKind: b.kind, spec: b.object().Spec.ProcessSpec}
	b.reconcile()
	b.Expect(b.object().Status).To(And(HaveField("Incarnation", int64(1)), HaveField("ReservedIncarnation", int64(0))), "written before the start")
	b.Expect(b.rt.Live(testUID)).To(Equal([]int64{1}))
}
