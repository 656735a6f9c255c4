// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/api/v1alpha1"
)

func TestRecent_ForgetsOldest(t *testing.T) {
	g := NewWithT(t)
	var recent Recent[int]
	for i := range remembered + 1 {
		recent.Store(types.UID(fmt.Sprint(i)), i)
		recent.Store(types.UID(fmt.Sprint(i)), i)
	}
	_, known := recent.Get("0")
	g.Expect(known).To(BeFalse())
	value, known := recent.Get("1")
	g.Expect(known).To(BeTrue())
	g.Expect(value).To(Equal(1))
	g.Expect(recent.notes).To(HaveLen(remembered))
}

func TestFirstObserved_ReportsOnlyRecentExits(t *testing.T) {
	g := NewWithT(t)
	now := time.Unix(1_800_000_000, 0)
	var seen FirstObserved
	run := &v1alpha1.StrategyRun{}
	run.UID = "run"
	_, ok := seen.At(run, now)
	g.Expect(ok).To(BeFalse(), "the process has not exited")
	run.Status.Outcome, run.Status.FinishTime = v1alpha1.OutcomeFailed, ptr.To(metav1.NewMicroTime(now))
	for _, after := range []time.Duration{time.Second, 2 * time.Second} {
		at, ok := seen.At(run, now.Add(after))
		g.Expect(ok).To(BeTrue())
		g.Expect(at).To(Equal(now.Add(time.Second)))
	}
	for _, after := range []time.Duration{lately, -time.Second} {
		_, ok = seen.At(run, now.Add(after))
		g.Expect(ok).To(BeFalse())
	}
}
