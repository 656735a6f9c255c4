// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"testing"
	"time"

	"github.com/go-logr/logr"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/facts"
	"github.com/berth-dev/berth/internal/runtime"
	"github.com/berth-dev/berth/internal/runtime/fake"
)

// namespaced counts the calls for a UID that arrive before its namespace is set.
type namespaced struct {
	*fake.Runtime
	homes map[types.UID]string
	blind int
}

func (n *namespaced) Belongs(uid types.UID, namespace string) { n.homes[uid] = namespace }

func (n *namespaced) Observe(ctx context.Context, uid types.UID) ([]facts.Incarnation, error) {
	if n.homes[uid] == "" {
		n.blind++
	}
	return n.Runtime.Observe(ctx, uid)
}

// sleeper calls the runtime in Asleep, the first hook of a kind that a reconcile calls.
type sleeper struct {
	*testKind
	runtime *namespaced
}

func (s sleeper) Asleep(ctx context.Context, object Object, _ time.Time) bool {
	_, err := s.runtime.Observe(ctx, object.GetUID())
	return err != nil
}

// A new manager has no record of the starts. Without the namespace, any owner of a UID could present a process for it.
func TestARuntimeIsToldTheNamespaceFirst(t *testing.T) {
	b := newBench(t, nil)
	rt := &namespaced{Runtime: b.rt, homes: map[types.UID]string{}}
	b.r.Runtimes, b.r.Kind = runtime.NewRegistry(rt, logr.Discard()), sleeper{b.kind, rt}
	b.reconcile()
	b.Expect(rt.blind).To(BeZero())
	b.Expect(rt.homes).To(Equal(map[types.UID]string{testUID: testKey.Namespace}))
}
