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

// left tracks what an interrupted run would leave behind.
var left leavings

type leavings struct {
	mu       sync.Mutex
	managers []*os.Process
	states   []string
	others   []func()
}

func (l *leavings) manager(p *os.Process) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.managers = append(l.managers, p)
}

func (l *leavings) state(dir string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.states = append(l.states, dir)
}

// other registers a clean-up function, which must be harmless when called again.
func (l *leavings) other(end func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.others = append(l.others, end)
}

// clear stops everything. Killing a manager that has already exited has no effect: os.Process rejects it.
func (l *leavings) clear() {
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
		if err := sweep(dir); err != nil {
			fmt.Fprintln(os.Stderr, "processes remain:", err)
			continue
		}
		_ = os.RemoveAll(dir)
	}
}

// stateDirectory creates a state directory and makes sure that no process in it survives the test.
func stateDirectory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "berth-bench-state-")
	if err != nil {
		t.Fatal(err)
	}
	left.state(dir)
	t.Cleanup(func() {
		if err := sweep(dir); err != nil {
			t.Error(err)
		}
		_ = os.RemoveAll(dir)
	})
	return dir
}

// sweep kills the processes that a manager has left in a state directory after a failed test. Normally there are none.
func sweep(dir string) (err error) {
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
