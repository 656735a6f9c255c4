// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package notify passes on which objects something happened to.
package notify

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// Notifier passes UIDs on in order of their first mention. However slow the reader, nothing is lost and nobody who tells waits.
type Notifier struct {
	out  chan types.UID
	wake chan struct{}

	mu    sync.Mutex
	known map[types.UID]bool
	queue []types.UID
}

// New makes a Notifier that passes nothing on until Run.
func New() *Notifier {
	return &Notifier{out: make(chan types.UID), wake: make(chan struct{}, 1), known: map[types.UID]bool{}}
}

// C is where the UIDs come out.
func (n *Notifier) C() <-chan types.UID { return n.out }

// Tell says that something happened to a UID. Until the reader gets it, further mentions are one.
func (n *Notifier) Tell(uid types.UID) {
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

func (n *Notifier) next() (types.UID, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.queue) == 0 {
		return "", false
	}
	uid := n.queue[0]
	n.queue = n.queue[1:]
	// From here on a new event is told again: the reader may look before it happened.
	delete(n.known, uid)
	return uid, true
}

// Run passes on until closed is closed.
func (n *Notifier) Run(closed <-chan struct{}) {
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
