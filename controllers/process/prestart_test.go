// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// preStartKind is a kind whose incarnations are pre-started.
type preStartKind struct{ *testKind }

func (preStartKind) Traits(Object) Traits { return Traits{PreStart: true} }

// The API server first decides whether a deletion waits for finalizers, and then deletes. A finalizer that is added between these steps does not keep the
// object, so a successful claim does not show that the object still exists.
func TestPreStart_SkipsObjectDeletedDuringClaim(t *testing.T) {
	b := newFixture(t, nil)
	b.r.Kind = preStartKind{b.kind}
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
	b.r.Kind = preStartKind{b.kind}
	b.reconcile()
	b.Expect(b.rt.Live(testUID)).To(HaveLen(1), "the process of an existing object starts without a write of its status")
	b.Expect(b.writes).To(Equal(1), "the claim")
}
