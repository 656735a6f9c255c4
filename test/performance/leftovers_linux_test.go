// Copyright The Berth Authors.
// SPDX-License-Identifier: Apache-2.0

package performance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/runtime/host"
)

// leftovers records the managers, state directories and other resources that must be removed if the run is interrupted.
var leftovers resources

type resources struct {
	mu       sync.Mutex
	managers []*os.Process
	states   []string
	others   []func()
}

func (l *resources) addManager(p *os.Process) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.managers = append(l.managers, p)
}

func (l *resources) addStateDir(dir string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.states = append(l.states, dir)
}

// addCleanup registers a clean-up function. The function may be called more than once.
func (l *resources) addCleanup(end func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.others = append(l.others, end)
}

// clear stops the managers, calls the clean-up functions and removes the state directories. It may be called after a manager has exited:
// in this case os.Process.Kill returns an error and has no effect.
func (l *resources) clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.managers {
		_ = p.Kill()
		_, _ = p.Wait()
	}
	for _, end := range l.others {
		end()
	}
	for _, dir := range l.states {
		if _, err := os.Stat(dir); err != nil {
			continue
		}
		if err := killRecorded(dir); err != nil {
			fmt.Fprintln(os.Stderr, "processes remain:", err)
			continue
		}
		_ = os.RemoveAll(dir)
	}
}

// stateDirectory creates a state directory. When the test ends, it kills all processes that are recorded in the directory.
func stateDirectory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "berth-bench-state-")
	if err != nil {
		t.Fatal(err)
	}
	leftovers.addStateDir(dir)
	t.Cleanup(func() {
		if err := killRecorded(dir); err != nil {
			t.Error(err)
		}
		_ = os.RemoveAll(dir)
	})
	return dir
}

// killRecorded kills the processes that are still recorded in a state directory. There are some only after a failed or interrupted test.
func killRecorded(dir string) (err error) {
	h, err := host.New(host.Options{StateDir: dir, ShimPath: shimPath})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		found, failed := h.List(context.Background())
		if failed == nil && len(found) == 0 {
			return nil
		}
		for i := range found {
			if found[i].Alive() {
				err = h.Kill(context.Background(), types.UID(found[i].UID), found[i].Number)
			} else {
				err = h.Forget(context.Background(), types.UID(found[i].UID))
			}
		}
		pollOnce(50 * time.Millisecond)
	}
	return fmt.Errorf("processes still run in %s: %w", dir, err)
}
