// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package logfile

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/runtime"
)

func TestNotice_NotifiesOncePerWatch(t *testing.T) {
	told := make(chan types.UID, 100)
	n, err := newNotice(func(uid types.UID) { told <- uid })
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	logs := &Logs{path: func(uid types.UID) string { return filepath.Join(dir, string(uid)) }}
	grow := func(name string) {
		t.Helper()
		file, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err == nil {
			_, err = file.WriteString("output\n")
		}
		if err := errors.Join(err, file.Close()); err != nil {
			t.Fatal(err)
		}
	}
	hear := func(want types.UID) {
		t.Helper()
		select {
		case uid := <-told:
			if uid != want {
				t.Fatalf("notified for %s, want %s", uid, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("no notification for %s", want)
		}
	}
	if err := n.Watch("a", filepath.Join(dir, "a")); !errors.Is(err, runtime.ErrNotFound) {
		t.Errorf("watch of a missing log: %v", err)
	}
	if _, err := logs.LastActivity(t.Context(), "a"); !errors.Is(err, runtime.ErrNotFound) {
		t.Errorf("last activity of a missing log: %v", err)
	}
	grow("a")
	grow("b")
	for _, uid := range []types.UID{"a", "b"} {
		if err := n.Watch(uid, filepath.Join(dir, string(uid))); err != nil {
			t.Fatal(err)
		}
	}
	grow("a")
	hear("a")
	grow("a") // no longer watched
	grow("b")
	hear("b")
	if err := n.Watch("a", filepath.Join(dir, "a")); err != nil {
		t.Fatal(err)
	}
	grow("a")
	hear("a")
	if err := n.Watch("a", filepath.Join(dir, "a")); err != nil {
		t.Fatal(err)
	}
	n.watcher.Errors <- fsnotify.ErrEventOverflow
	hear("a") // its event may be lost
	if at, err := logs.LastActivity(t.Context(), "a"); err != nil || time.Since(at) > time.Hour {
		t.Errorf("activity: %v, %v", at, err)
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	if len(told) > 0 {
		t.Errorf("unexpected notification: %v", <-told)
	}
	if err := n.Watch("a", filepath.Join(dir, "a")); err == nil {
		t.Error("Watch succeeds after Close")
	}
}
