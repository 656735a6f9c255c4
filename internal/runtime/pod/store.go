// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// store is what is known of the Pods: what the watch has brought, and what the API server has answered since. The newer of both counts.
type store struct {
	mu      sync.Mutex
	pods    map[types.UID]map[types.UID]*known // by the UID of the object, then of the Pod
	homes   map[types.UID]string               // the namespace of the object, where that is known: nothing elsewhere is its own
	gone    map[types.UID]time.Time            // Pods that were removed from here, and that the watch may still bring
	changed map[types.UID]chan struct{}        // closed when something is new of an object that somebody waits for
}

type known struct {
	pod *corev1.Pod
	// unseen is since when it is known from an answer alone. The watch may never bring what was gone again before it looked.
	unseen time.Time
}

func newStore() *store {
	return &store{pods: map[types.UID]map[types.UID]*known{}, homes: map[types.UID]string{}, gone: map[types.UID]time.Time{}, changed: map[types.UID]chan struct{}{}}
}

// put says whose Pod it is, and whether it was news.
func (s *store) put(p *corev1.Pod, seen bool) (types.UID, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	uid := types.UID(p.Labels[LabelUID])
	if _, removed := s.gone[p.UID]; uid == "" || !hasItsName(p, uid) || removed {
		return uid, false
	}
	of := s.pods[uid]
	if of == nil {
		of = map[types.UID]*known{}
		s.pods[uid] = of
	}
	before := of[p.UID]
	if before != nil && !newer(p, before.pod) {
		if seen {
			before.unseen = time.Time{}
		}
		return uid, false
	}
	now := &known{pod: p}
	if !seen && before == nil {
		now.unseen = time.Now()
	}
	of[p.UID] = now
	s.tell(uid)
	return uid, true
}

// newer says whether a is later than b. What can't be compared is taken.
func newer(a, b *corev1.Pod) bool {
	order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err != nil || order > 0
}

// remove says whether the Pod was there. Unless the watch says that it is gone, the watch may bring it once more.
func (s *store) remove(p *corev1.Pod, seen bool) (types.UID, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	uid := types.UID(p.Labels[LabelUID])
	_, there := s.pods[uid][p.UID]
	delete(s.pods[uid], p.UID)
	if len(s.pods[uid]) == 0 {
		delete(s.pods, uid)
	}
	switch {
	case seen:
		delete(s.gone, p.UID)
	case there:
		s.bury(p.UID)
	}
	if there {
		s.tell(uid)
	}
	return uid, there
}

// bury keeps the watch from bringing a Pod once more. A watch that has not even brought its end for so long has missed all of it.
func (s *store) bury(pod types.UID) {
	now := time.Now()
	for other, since := range s.gone {
		if now.Sub(since) > 10*time.Minute {
			delete(s.gone, other)
		}
	}
	s.gone[pod] = now
}

// of gives the Pods of an object, the newest incarnation first.
func (s *store) of(uid types.UID) []*corev1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	var pods []*corev1.Pod
	for _, is := range s.pods[uid] {
		if s.own(uid, is.pod) {
			pods = append(pods, is.pod)
		}
	}
	slices.SortFunc(pods, func(a, b *corev1.Pod) int { return int(number(b) - number(a)) })
	return pods
}

// unseen gives the Pods of an object that the watch has not brought in that time.
func (s *store) unseen(uid types.UID, after time.Duration) []*corev1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	var pods []*corev1.Pod
	for _, is := range s.pods[uid] {
		if s.own(uid, is.pod) && !is.unseen.IsZero() && time.Since(is.unseen) > after {
			pods = append(pods, is.pod)
		}
	}
	return pods
}

// settle says where the object is; an empty namespace, that it is not known any more.
func (s *store) settle(uid types.UID, namespace string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if namespace == "" {
		delete(s.homes, uid)
		return
	}
	s.homes[uid] = namespace
}

// own is called with the lock held. Labels say nothing about who made a Pod: whoever may make Pods in a namespace can write any there.
func (s *store) own(uid types.UID, p *corev1.Pod) bool {
	home, known := s.homes[uid]
	return !known || p.Namespace == home
}

// uids gives the objects that have Pods.
func (s *store) uids() []types.UID {
	s.mu.Lock()
	defer s.mu.Unlock()
	uids := make([]types.UID, 0, len(s.pods))
	for uid := range s.pods {
		uids = append(uids, uid)
	}
	return uids
}

// change is closed when something is new of an object. Ask for it before looking.
func (s *store) change(uid types.UID) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.changed[uid]
	if c == nil {
		c = make(chan struct{})
		s.changed[uid] = c
	}
	return c
}

// tell is called with the lock held.
func (s *store) tell(uid types.UID) {
	if c := s.changed[uid]; c != nil {
		close(c)
		delete(s.changed, uid)
	}
}

// hasItsName says whether a Pod has the name of the incarnation that its labels say it is: a copy of one, made to look into it, has another name.
func hasItsName(p *corev1.Pod, uid types.UID) bool {
	n := number(p)
	return n > 0 && strings.HasSuffix(p.Name, "-"+short(uid)+"-"+strconv.FormatInt(n, 10))
}

// number is the incarnation of a Pod: 0 when it has none that can be read.
func number(p *corev1.Pod) int64 {
	n, err := strconv.ParseInt(p.Labels[LabelIncarnation], 10, 64)
	if err != nil || n < 0 {
		return 0
	}
	return n
}
