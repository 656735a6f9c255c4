// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/controllers/process"
)

// ledger records what the clients requested and how the API server responded, so that the test detects lost objects.
type ledger struct {
	mu       sync.Mutex
	intended map[string]bool // keys: the unique words of all objects that clients tried to create
	lives    map[types.UID]*life
}

// life records what is known about one object, from its creation to its deletion.
type life struct {
	name string
	// deleteRequested means that a client has sent a delete request; deleteConfirmed means that the API server has confirmed a delete request.
	deleteRequested, deleteConfirmed bool
}

func newLedger() *ledger {
	return &ledger{intended: map[string]bool{}, lives: map[types.UID]*life{}}
}

func (l *ledger) intend(word string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.intended[word] = true
}

func (l *ledger) created(object process.Object) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lifeOf(object.GetUID()).name = object.GetName()
}

// lifeOf returns the record of the object with this UID. It creates the record if necessary, because another client may find the object before the client that
// created the object receives the response.
func (l *ledger) lifeOf(uid types.UID) *life {
	if l.lives[uid] == nil {
		l.lives[uid] = &life{}
	}
	return l.lives[uid]
}

func (l *ledger) deleting(uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lifeOf(uid).deleteRequested = true
}

func (l *ledger) deleted(uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lifeOf(uid).deleteConfirmed = true
}

// compare returns an error if an object that no client deleted is missing, or if an object exists that was deleted or that no client created.
func (l *ledger) compare(objects map[types.UID]process.Object) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for uid, object := range objects {
		if word := lifeWord(object); !l.intended[word] {
			return fmt.Errorf("%s with UID %s was not created by any client (life %q)", object.GetName(), uid, word)
		}
		life := l.lifeOf(uid)
		life.name = object.GetName()
		if life.deleteConfirmed {
			return fmt.Errorf("%s with UID %s was deleted but still exists", object.GetName(), uid)
		}
	}
	for uid, life := range l.lives {
		if objects[uid] == nil && !life.deleteRequested {
			return fmt.Errorf("%s with UID %s was created, was not deleted by any client, and is lost", life.name, uid)
		}
	}
	return nil
}
