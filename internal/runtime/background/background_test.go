// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package background

import (
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
)

func TestTasks_CloseWaitsForGoroutinesAndStartsNoMore(t *testing.T) {
	g := NewWithT(t)
	tasks := New()
	ended := false
	g.Expect(tasks.Go(func() { <-tasks.Lifetime().Done(); ended = true })).To(BeTrue())
	tasks.Close()
	g.Expect(ended).To(BeTrue())
	g.Expect(tasks.Go(func() { t.Error("started after Close") })).To(BeFalse())
	tasks.Close() // a second call has no effect
}

func TestTasks_CloseWaitsForGoroutinesThatEntered(t *testing.T) {
	g := NewWithT(t)
	tasks := New()
	leave, entered := tasks.Enter()
	g.Expect(entered).To(BeTrue())
	left := false
	go func() {
		<-tasks.Lifetime().Done()
		left = true
		leave()
	}()
	tasks.Close()
	g.Expect(left).To(BeTrue())
	_, entered = tasks.Enter()
	g.Expect(entered).To(BeFalse())
}

type counter struct {
	Entry
	n int
}

func TestEntries_SerializeTheCallsForOneUIDAndForget(t *testing.T) {
	g := NewWithT(t)
	entries := NewEntries(func(types.UID) *counter { return &counter{} })
	var calls sync.WaitGroup
	for range 100 {
		calls.Go(func() {
			e := entries.Acquire("a")
			defer e.Unlock()
			e.n++
		})
	}
	calls.Wait()
	g.Expect(entries.Get("a").n).To(Equal(100))
	g.Expect(entries.UIDs()).To(Equal([]types.UID{"a"}))

	old := entries.Acquire("a")
	calls.Go(func() {
		e := entries.Acquire("a") // waits for the lock of the old entry
		defer e.Unlock()
		e.n++
	})
	entries.Forget("a", old)
	old.Unlock()
	calls.Wait()
	g.Expect(old.Gone()).To(BeTrue())
	g.Expect(old.n).To(Equal(100))
	g.Expect(entries.Get("a").n).To(Equal(1))
}
