// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package activity

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestTracker_AttachedUserPreventsRest(t *testing.T) {
	now := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
	b := New(now)
	var told []types.UID
	b.OnUse(func(uid types.UID) { told = append(told, uid) })

	if !b.Rest("a") || !b.Resting("a") {
		t.Error("an unused object cannot sleep")
	}
	leave := b.Use("a")
	if !b.Resting("a") {
		t.Error("a user who attaches does not see that the object sleeps")
	}
	if b.Rest("a") || b.Resting("a") {
		t.Error("the object sleeps while a user is attached")
	}
	if len(told) != 1 || told[0] != "a" {
		t.Errorf("told %v", told)
	}
	now.SetTime(time.Unix(1010, 0))
	leave()
	leave()
	if last, here := b.Last("a"); here || !last.Equal(time.Unix(1010, 0)) {
		t.Errorf("left: %v %t", last, here)
	}
	if !b.Rest("a") {
		t.Error("a user who has left keeps the object awake")
	}
	b.Rise("a")
	if b.Resting("a") {
		t.Error("the object still rests after Rise")
	}
}

func TestTracker_TouchNotifiesOnce(t *testing.T) {
	now := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
	b, told := New(now), 0
	b.OnUse(func(types.UID) { told++ })
	b.Rise("a") // the object is reconciled
	for range 5 {
		b.Touch("a")
	}
	if last, here := b.Last("a"); told != 1 || here || !last.Equal(time.Unix(1000, 0)) {
		t.Errorf("told %d times, %v, %t", told, last, here)
	}
	b.Forget("a")
	if last, _ := b.Last("a"); !last.IsZero() {
		t.Error("the activity is not forgotten")
	}
}

func TestTracker_ForgetsForGood(t *testing.T) {
	b := New(clocktesting.NewFakePassiveClock(time.Unix(1000, 0)))
	b.Rise("a")
	leave := b.Use("a")
	b.Forget("a")
	b.Touch("a")
	if _, here := b.Last("a"); !here {
		t.Error("the user has not left yet")
	}
	leave()
	b.Use("a")() // a client whose request was admitted before the object was deleted
	b.Touch("a")
	if n := b.pages.Len(); n != 0 {
		t.Errorf("the records of %d deleted objects are left", n)
	}
}
