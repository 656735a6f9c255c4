// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/berth-dev/berth/internal/perobject"
)

// store is the cache of Pods. It receives Pods from the watch and from responses of the API server, and keeps the newer version of each Pod.
type store struct {
	mu      sync.Mutex
	pods    map[types.UID]map[types.UID]*known // by the UID of the object, then of the Pod
	homes   map[types.UID]string               // the namespace of each object, if known (see own)
	gone    map[types.UID]time.Time            // removal times of Pods that the watch may still deliver, by the UID of the Pod
	changed perobject.Map[chan struct{}]       // closed when the object changes; only for objects that a caller waits for
}

type known struct {
	pod *corev1.Pod
	// unseen is when the Pod was added from a response; zero once the watch has delivered the Pod. The watch may never deliver the Pod, because the Pod may
	// already have been deleted.
	unseen time.Time
}

func newStore() *store {
	return &store{pods: map[types.UID]map[types.UID]*known{}, homes: map[types.UID]string{}, gone: map[types.UID]time.Time{}}
}

// put stores a Pod. seen means that the watch delivered the Pod. put returns the UID of the Pod's object, and whether the Pod was new or changed.
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
	switch {
	case seen:
	case before != nil:
		now.unseen = before.unseen
	default:
		now.unseen = time.Now()
	}
	of[p.UID] = now
	s.tell(uid)
	return uid, true
}

// newer reports whether a is newer than b. It returns true if the versions cannot be compared.
func newer(a, b *corev1.Pod) bool {
	order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err != nil || order > 0
}

// remove deletes a Pod from the cache and reports whether it was present. seen means that the watch reported the deletion, so it cannot deliver the Pod again.
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

// bury prevents the watch from adding a removed Pod again. It drops entries older than 10 minutes: if the watch has not delivered the deletion by then, it has
// missed the Pod entirely.
func (s *store) bury(pod types.UID) {
	now := time.Now()
	maps.DeleteFunc(s.gone, func(_ types.UID, since time.Time) bool { return now.Sub(since) > 10*time.Minute })
	s.gone[pod] = now
}

// of returns the Pods of an object, the newest incarnation first. If the namespace of the object is not known, of returns the Pods of all namespaces that claim
// to be its incarnations: an orphan has no object, and its processes must be found nevertheless. Nothing may be read from or sent to such a Pod (see own).
func (s *store) of(uid types.UID) []*corev1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	pods := s.matching(uid, func(*known) bool { return true })
	slices.SortFunc(pods, func(a, b *corev1.Pod) int { return cmp.Compare(number(b), number(a)) })
	return pods
}

// own returns the Pods of an object in its namespace, the newest incarnation first. It returns none while that namespace is not known.
func (s *store) own(uid types.UID) []*corev1.Pod {
	if _, known := s.home(uid); !known {
		return nil
	}
	return s.of(uid)
}

// home returns the namespace of an object. known is false before the first and after the last reconcile of the object.
func (s *store) home(uid types.UID) (namespace string, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	namespace, known = s.homes[uid]
	return namespace, known
}

// newest returns the Pod of the newest incarnation of an object in its namespace, or nil if there is none.
func (s *store) newest(uid types.UID) *corev1.Pod {
	pods := s.own(uid)
	if len(pods) == 0 {
		return nil
	}
	return pods[0]
}

// unseen returns the Pods of an object that became known from a response of the API server, and that the watch has not delivered although more than the given
// time has passed.
func (s *store) unseen(uid types.UID, after time.Duration) []*corev1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.matching(uid, func(is *known) bool { return !is.unseen.IsZero() && time.Since(is.unseen) > after })
}

// settle sets the namespace of an object; an empty namespace removes it.
func (s *store) settle(uid types.UID, namespace string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if namespace == "" {
		delete(s.homes, uid)
		return
	}
	s.homes[uid] = namespace
}

// matching returns the Pods in the namespace of an object that a function selects. Labels do not prove who created a Pod, because everyone who can create Pods
// in a namespace can set any labels there. The caller holds the lock.
func (s *store) matching(uid types.UID, selects func(*known) bool) (pods []*corev1.Pod) {
	home, limited := s.homes[uid]
	for _, is := range s.pods[uid] {
		if (!limited || is.pod.Namespace == home) && selects(is) {
			pods = append(pods, is.pod)
		}
	}
	return pods
}

// uids returns the UIDs of the objects that have Pods.
func (s *store) uids() []types.UID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.pods))
}

// changes returns a function for a caller that waits for an object until it calls done. The function returns a channel that is closed when the object changes;
// call it before reading the state.
func (s *store) changes(uid types.UID) (change func() <-chan struct{}, done func()) {
	c, done := s.changed.Use(uid)
	return func() <-chan struct{} {
		s.mu.Lock()
		defer s.mu.Unlock()
		if *c == nil {
			*c = make(chan struct{})
		}
		return *c
	}, done
}

// tell wakes the callers that wait for an object. The caller holds the lock.
func (s *store) tell(uid types.UID) {
	if c := s.changed.Get(uid); c != nil && *c != nil {
		close(*c)
		*c = nil
	}
}

// hasItsName reports whether a Pod has the name that follows from its labels. A copy of a Pod, made for debugging, has another name.
func hasItsName(p *corev1.Pod, uid types.UID) bool {
	n := number(p)
	return n > 0 && strings.HasSuffix(p.Name, "-"+short(uid)+"-"+strconv.FormatInt(n, 10))
}

// number returns the incarnation of a Pod, or 0 if its label is missing or invalid.
func number(p *corev1.Pod) int64 {
	n, err := strconv.ParseInt(p.Labels[LabelIncarnation], 10, 64)
	if err != nil || n < 0 {
		return 0
	}
	return n
}
