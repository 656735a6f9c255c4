// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package eventqueue is a queue of UIDs of objects that have changed.
package eventqueue

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// Queue queues UIDs in the order in which they were first added. It loses no UID, and Add never blocks, however slow the reader is.
type Queue struct {
	out  chan types.UID
	wake chan struct{}

	mu    sync.Mutex
	known map[types.UID]bool
	queue []types.UID
}

// New returns a Queue that delivers nothing until Run is called.
func New() *Queue {
	return &Queue{out: make(chan types.UID), wake: make(chan struct{}, 1), known: map[types.UID]bool{}}
}

// C returns the channel that delivers the UIDs.
func (n *Queue) C() <-chan types.UID { return n.out }

// Add adds a UID. Until the reader receives it, further calls with the same UID have no effect.
func (n *Queue) Add(uid types.UID) {
	n.mu.Lock()
	if !n.known[uid] {
		n.known[uid] = true
		n.queue = append(n.queue, uid)
	}
	n.mu.Unlock()
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

func (n *Queue) next() (types.UID, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.queue) == 0 {
		return "", false
	}
	uid := n.queue[0]
	n.queue = n.queue[1:]
	// From here on a new event adds the UID again, because the reader may read the state before that event.
	delete(n.known, uid)
	return uid, true
}

// Run delivers UIDs until the caller closes the given channel.
func (n *Queue) Run(closed <-chan struct{}) {
	for {
		uid, ok := n.next()
		if !ok {
			select {
			case <-n.wake:
				continue
			case <-closed:
				return
			}
		}
		select {
		case n.out <- uid:
		case <-closed:
			return
		}
	}
}
