// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/controllers/process"
)

// ledger records the responses of the API server to the clients, so that no lost object goes undetected.
type ledger struct {
	mu       sync.Mutex
	intended map[string]bool // by the unique word that an object is created with
	lives    map[types.UID]*life
}

type life struct {
	name string
	// asked: a client has sent a delete request; gone: the API server has confirmed it.
	asked, gone bool
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
	l.of(object.GetUID()).name = object.GetName()
}

// of returns the life of a UID; a client may have found the object before its creator received the response.
func (l *ledger) of(uid types.UID) *life {
	if l.lives[uid] == nil {
		l.lives[uid] = &life{}
	}
	return l.lives[uid]
}

func (l *ledger) deleting(uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of(uid).asked = true
}

func (l *ledger) deleted(uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of(uid).gone = true
}

// compare returns an error if an object was lost or has come back, given all existing objects.
func (l *ledger) compare(objects map[types.UID]process.Object) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for uid, object := range objects {
		if word := lifeOf(object); !l.intended[word] {
			return fmt.Errorf("%s with UID %s was not created by any client (life %q)", object.GetName(), uid, word)
		}
		life := l.of(uid)
		life.name = object.GetName()
		if life.gone {
			return fmt.Errorf("%s with UID %s was deleted but still exists", object.GetName(), uid)
		}
	}
	for uid, life := range l.lives {
		if objects[uid] == nil && !life.asked {
			return fmt.Errorf("%s with UID %s was created, was not deleted by any client, and is lost", life.name, uid)
		}
	}
	return nil
}
