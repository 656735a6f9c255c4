// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/v1alpha1"
)

// notReadyFor gives an object with that condition Ready, and others if they are asked for.
func notReadyFor(reason string, since time.Time, others ...metav1.Condition) Object {
	object := &v1alpha1.StrategyRun{}
	ready := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: reason, LastTransitionTime: metav1.NewTime(since)}
	object.Status.Conditions = append(others, ready)
	return object
}

func TestWhatIsNotReadyAlthoughItOughtToBe(t *testing.T) {
	g := NewWithT(t)
	now := time.Unix(1000, 0)
	succeeded := func(status metav1.ConditionStatus) metav1.Condition {
		return metav1.Condition{Type: v1alpha1.ConditionSucceeded, Status: status}
	}
	for _, reason := range []string{v1alpha1.ReasonStopped, v1alpha1.ReasonCompleted, v1alpha1.ReasonIdle} {
		g.Expect(missing(notReadyFor(reason, now))).To(BeNil(), "%s is as it should be", reason)
	}
	for _, status := range []metav1.ConditionStatus{metav1.ConditionTrue, metav1.ConditionFalse} {
		g.Expect(missing(notReadyFor(v1alpha1.ReasonFailed, now, succeeded(status)))).To(BeNil(), "a run that is over")
	}
	g.Expect(missing(notReadyFor(v1alpha1.ReasonStarting, now, succeeded(metav1.ConditionUnknown)))).NotTo(BeNil(), "a run that is not")
	g.Expect(missing(&v1alpha1.Instance{})).To(BeNil(), "of which nothing is known")
	g.Expect(missing(notReadyFor(v1alpha1.ReasonStarting, now))).To(HaveField("LastTransitionTime.Time", now))
}

func TestWhoIsNotReadyForTheLongestTime(t *testing.T) {
	g := NewWithT(t)
	c := &census{tallies: map[types.UID]*tally{}}
	for uid, seconds := range map[types.UID]int64{"a": 30, "b": 10, "c": 20} {
		c.note("devservers", uid, sight{missing: missing(notReadyFor(v1alpha1.ReasonStarting, time.Unix(seconds, 0)))}, time.Unix(100, 0))
	}
	c.note("instances", "d", sight{missing: missing(notReadyFor(v1alpha1.ReasonStarting, time.Unix(5, 0)))}, time.Unix(100, 0))
	starting := cause{"devservers", v1alpha1.ReasonStarting}
	g.Expect(c.missing()).To(HaveKeyWithValue(starting, absence{objects: 3, since: time.Unix(10, 0)}))
	g.Expect(c.missing()).To(HaveLen(2))

	c.note("devservers", "b", sight{ready: true}, time.Unix(101, 0))
	g.Expect(c.missing()).To(HaveKeyWithValue(starting, absence{objects: 2, since: time.Unix(20, 0)}))
	c.forget("c")
	g.Expect(c.missing()).To(HaveKeyWithValue(starting, absence{objects: 1, since: time.Unix(30, 0)}))
}
