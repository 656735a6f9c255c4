// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/controllers/process"
)

// ledger is what the clients were told by the API server, so that nothing can be lost unnoticed.
type ledger struct {
	mu       sync.Mutex
	intended map[string]bool // by the unique word that an object is created with
	lives    map[types.UID]*life
}

type life struct {
	name string
	// asked says that somebody has tried to delete it, gone that the API server has agreed.
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

// of gives the life of a UID; a client may have found it before its creator got the answer.
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

// compare says what was lost and what has come back, given all objects that there are.
func (l *ledger) compare(objects map[types.UID]process.Object) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for uid, object := range objects {
		if word := lifeOf(object); !l.intended[word] {
			return fmt.Errorf("%s with UID %s was created by nobody (life %q)", object.GetName(), uid, word)
		}
		life := l.of(uid)
		life.name = object.GetName()
		if life.gone {
			return fmt.Errorf("%s with UID %s was deleted and is still there", object.GetName(), uid)
		}
	}
	for uid, life := range l.lives {
		if objects[uid] == nil && !life.asked {
			return fmt.Errorf("%s with UID %s was created, was deleted by nobody, and is lost", life.name, uid)
		}
	}
	return nil
}
