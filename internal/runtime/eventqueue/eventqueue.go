// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

// Package eventqueue is a queue of UIDs of objects that have changed.
package eventqueue

import (
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
)

// Queue queues UIDs in the order in which they were first added, and delivers them on a channel. It loses no UID, and Add never blocks, however slow the reader
// is.
type Queue struct {
	queue workqueue.TypedInterface[types.UID]
	out   chan types.UID
}

// New returns a Queue that delivers nothing until Run is called.
func New() *Queue {
	return &Queue{queue: workqueue.NewTyped[types.UID](), out: make(chan types.UID)}
}

// C returns the channel that delivers the UIDs.
func (q *Queue) C() <-chan types.UID { return q.out }

// Add adds a UID. If the queue already contains the UID, it delivers the UID once.
func (q *Queue) Add(uid types.UID) { q.queue.Add(uid) }

// Run delivers UIDs until the caller closes the given channel.
func (q *Queue) Run(closed <-chan struct{}) {
	go func() {
		<-closed
		q.queue.ShutDown()
	}()
	for {
		uid, shutdown := q.queue.Get() // from here on Add adds the UID again, because the reader may read the state before that event
		if shutdown {
			return
		}
		select {
		case q.out <- uid:
		case <-closed:
			return
		}
		q.queue.Done(uid)
	}
}
