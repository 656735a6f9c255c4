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

// notReadyFor returns an object whose Ready is False for the reason, with the other conditions.
func notReadyFor(reason string, since time.Time, others ...metav1.Condition) *v1alpha1.StrategyRun {
	object := &v1alpha1.StrategyRun{}
	object.Status.Conditions = append(others, newCondition(v1alpha1.ConditionReady, metav1.ConditionFalse, reason, since))
	return object
}

func newCondition(conditionType string, status metav1.ConditionStatus, reason string, since time.Time) metav1.Condition {
	return metav1.Condition{Type: conditionType, Status: status, Reason: reason, LastTransitionTime: metav1.NewTime(since)}
}

func TestMissing_ReportsObjectsThatShouldBeReady(t *testing.T) {
	g := NewWithT(t)
	then, now := time.Unix(10, 0), time.Unix(1000, 0)
	reasonOf := func(object Object) string { reason, _ := missing(object); return reason }
	over := func(status metav1.ConditionStatus) metav1.Condition {
		return newCondition(v1alpha1.ConditionSucceeded, status, v1alpha1.ReasonFailed, now)
	}
	g.Expect(reasonOf(&v1alpha1.Instance{})).To(BeEmpty(), "an object without conditions")
	g.Expect(reasonOf(notReadyFor(v1alpha1.ReasonDisabled, now))).To(BeEmpty(), "disabled on purpose")
	g.Expect(reasonOf(notReadyFor(v1alpha1.ReasonCancelled, now, over(metav1.ConditionFalse)))).To(BeEmpty(), "a finished run")
	g.Expect(reasonOf(notReadyFor(v1alpha1.ReasonStarting, now, over(metav1.ConditionUnknown)))).To(Equal(v1alpha1.ReasonStarting), "an unfinished run")

	for _, reason := range []string{v1alpha1.ReasonFailed, v1alpha1.ReasonLost, v1alpha1.ReasonUnknown} {
		object := notReadyFor(reason, now)
		object.Status.Incarnation, object.Status.LastExit = 2, &v1alpha1.ProcessExit{Incarnation: 2}
		g.Expect(reasonOf(object)).To(BeEmpty(), "%s, and restartPolicy does not restart it", reason)
		object.Status.LastExit.Incarnation = 1
		g.Expect(reasonOf(object)).To(Equal(reason), "the exit of the second incarnation is unknown")
		object.Status.LastExit.Incarnation, object.Status.NextRestartTime = 2, &metav1.MicroTime{Time: now}
		g.Expect(reasonOf(object)).To(Equal(reason), "it will be restarted")
	}

	_, since := missing(notReadyFor(v1alpha1.ReasonStarting, then, newCondition(v1alpha1.ConditionStalled, metav1.ConditionFalse, "", now)))
	g.Expect(since).To(Equal(then))
	_, since = missing(notReadyFor(v1alpha1.ReasonStarting, then, newCondition(v1alpha1.ConditionReconciling, metav1.ConditionTrue, "", now)))
	g.Expect(since).To(Equal(now), "it was stopped on purpose until then")
}

func TestCollector_ReportsLongestTimeNotReady(t *testing.T) {
	g := NewWithT(t)
	c := &collector{tallies: map[types.UID]*objectMetrics{}}
	note := func(uid types.UID, at int64, reason string, since int64) {
		found := snapshot{missing: reason}
		if reason != "" {
			found.missingSince = time.Unix(since, 0)
		}
		c.recordState("devservers", uid, found, time.Unix(at, 0))
	}
	starting := cause{"devservers", v1alpha1.ReasonStarting}
	for uid, since := range map[types.UID]int64{"a": 30, "b": 10, "c": 20} {
		note(uid, 100, v1alpha1.ReasonStarting, since)
	}
	g.Expect(c.missing()).To(Equal(map[cause]absence{starting: {objects: 3, since: time.Unix(10, 0)}}), "as a new manager finds them")

	note("b", 101, "", 0)
	g.Expect(c.missing()).To(Equal(map[cause]absence{starting: {objects: 2, since: time.Unix(20, 0)}}))
	note("b", 102, v1alpha1.ReasonStarting, 10)
	note("c", 103, v1alpha1.ReasonBackOff, 103)
	g.Expect(c.missing()).To(Equal(map[cause]absence{
		starting:                               {objects: 2, since: time.Unix(30, 0)},
		{"devservers", v1alpha1.ReasonBackOff}: {objects: 1, since: time.Unix(20, 0)},
	}), "b was stopped in between, and c crashes before it is ready")

	c.forget("a")
	g.Expect(c.missing()).To(HaveKeyWithValue(starting, absence{objects: 1, since: time.Unix(102, 0)}))
}

func TestObjectMetrics_MeasuresFromTheApplyOnly(t *testing.T) {
	g := NewWithT(t)
	now := time.Unix(1000, 0)
	m := &objectMetrics{}
	m.wait(snapshot{generation: 1}, now)
	g.Expect(m.waitingSince).To(Equal(now), "an apply that starts the process")

	m.wait(snapshot{generation: 2, atRest: true}, now)
	g.Expect(m.waitingSince).To(BeZero(), "an apply that stops the process")
	m.wait(snapshot{generation: 3}, now)
	m.wait(snapshot{generation: 3, atRest: true}, now.Add(time.Second))
	g.Expect(m.waitingSince).To(BeZero(), "at rest: a later start is caused by a use of the object")
}
