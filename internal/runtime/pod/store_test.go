// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"strconv"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

func podVersion(of types.UID, number, resourceVersion int) *corev1.Pod {
	p := podWith(corev1.PodRunning, running)
	p.UID, p.ResourceVersion = of, strconv.Itoa(resourceVersion)
	p.Labels[LabelIncarnation] = strconv.Itoa(number)
	p.Name = podName("object", "web", int64(number))
	return p
}

func TestStore_KeepsNewerVersion(t *testing.T) {
	g, s := NewWithT(t), newStore()
	_, news := s.put(podVersion("a", 1, 9), false)
	g.Expect(news).To(BeTrue())
	_, news = s.put(podVersion("a", 1, 10), true)
	g.Expect(news).To(BeTrue(), "resource version 10 is newer than 9")
	_, news = s.put(podVersion("a", 1, 9), true)
	g.Expect(news).To(BeFalse())
	s.put(podVersion("b", 2, 3), true)
	g.Expect(s.of("object")).To(HaveExactElements(HaveField("UID", types.UID("b")), And(HaveField("UID", types.UID("a")), HaveField("ResourceVersion", "10"))))
	g.Expect(s.uids()).To(ConsistOf(types.UID("object")))
}

func TestStore_IgnoresEventsOfRemovedPod(t *testing.T) {
	g, s := NewWithT(t), newStore()
	s.put(podVersion("a", 1, 1), true)
	s.remove(podVersion("a", 1, 1), false)
	_, news := s.put(podVersion("a", 1, 2), true)
	g.Expect(news).To(BeFalse(), "a late event of the watch is ignored")
	g.Expect(s.of("object")).To(BeEmpty())
	s.remove(podVersion("a", 1, 2), true)
	g.Expect(s.gone).To(BeEmpty(), "the watch has caught up")
}

func TestStore_ReportsPodsUnseenByWatch(t *testing.T) {
	g, s := NewWithT(t), newStore()
	s.put(podVersion("a", 1, 1), false)
	g.Expect(s.unseen("object", 0)).To(HaveLen(1))
	g.Expect(s.unseen("object", unseenPatience)).To(BeEmpty())
	s.put(podVersion("a", 1, 2), false)
	g.Expect(s.unseen("object", 0)).To(HaveLen(1), "a second response is no event of the watch either")
	s.put(podVersion("a", 1, 2), true)
	g.Expect(s.unseen("object", 0)).To(BeEmpty())
}

func TestStore_ClosesChannelOnChange(t *testing.T) {
	g, s := NewWithT(t), newStore()
	next, done := s.changes("object")
	change := next()
	g.Expect(change).NotTo(BeClosed())
	s.put(podVersion("a", 1, 1), true)
	g.Expect(change).To(BeClosed())
	change = next()
	s.put(podVersion("a", 1, 1), true)
	g.Expect(change).NotTo(BeClosed(), "an unchanged Pod is not a change")
	s.remove(podVersion("a", 1, 1), true)
	g.Expect(change).To(BeClosed())
	next()
	done()
	g.Expect(s.changed.Len()).To(BeZero(), "no caller waits for a change")
}

func TestStore_IgnoresInvalidIncarnationLabels(t *testing.T) {
	g, s := NewWithT(t), newStore()
	for _, label := range []string{"", "x", "-1"} {
		p := podVersion("a", 1, 1)
		p.Labels[LabelIncarnation] = label
		_, news := s.put(p, true)
		g.Expect(news).To(BeFalse())
	}
	g.Expect(s.uids()).To(BeEmpty())
}
