// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package background

import (
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"
)

func TestTasks_CloseWaitsForGoroutinesAndStartsNoMore(t *testing.T) {
	g := NewWithT(t)
	tasks := New(nil)
	ended := false
	g.Expect(tasks.Go(func() { <-tasks.Lifetime().Done(); ended = true })).To(BeTrue())
	tasks.Close()
	g.Expect(ended).To(BeTrue())
	g.Expect(tasks.Go(func() { t.Error("started after Close") })).To(BeFalse())
	tasks.Close() // a second call has no effect
}

func TestTasks_NotifyCallsTheLatestFunction(t *testing.T) {
	g := NewWithT(t)
	tasks := New(nil)
	defer tasks.Close()
	tasks.Notify("a") // without a function, nothing happens
	var woken []types.UID
	tasks.OnChange(func(uid types.UID) { woken = append(woken, uid) })
	tasks.Notify("b")
	g.Expect(woken).To(Equal([]types.UID{"b"}))
}
